"""Reads and writes models, which are replaced atomically, and outputs such as logs."""
