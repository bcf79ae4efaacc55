"""Checks and experiments: comparison with one rank, bit-equal runs, and slow ranks."""
