"""Equality with one rank, bit-equal runs, and slow ranks for experiments."""
