"""Parts of benchmarks/sync.py."""
