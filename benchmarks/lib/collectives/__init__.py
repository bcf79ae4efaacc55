"""Parts of benchmarks/collectives.py."""
