"""The version of nnmpi; `setup.cfg` has the same, and a test compares the two."""

__version__ = "0.1.0"
