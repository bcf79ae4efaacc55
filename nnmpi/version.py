"""The version of nnmpi; a test compares it with the one in `setup.cfg`."""

__version__ = "0.1.0"
