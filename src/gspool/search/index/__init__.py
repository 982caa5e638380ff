"""Vectors in a Lance table: write, export, search exactly or through an approximate index."""
