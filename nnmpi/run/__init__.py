"""A run: its parts, training, files and reports."""
