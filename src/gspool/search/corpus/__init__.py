"""From pictures to vectors: list the sources, decode, embed, and keep a table up to date."""
