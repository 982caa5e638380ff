"""What a person sees of the commands: arguments, progress, tables, errors."""
