"""The terminal interface of the commands: arguments, progress, tables, errors, signals."""
