"""Reads and writes the files of a run: models, which are replaced atomically and checked when they
are read, and outputs such as logs."""
