"""Data parallelism."""
