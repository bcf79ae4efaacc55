"""Parts of benchmarks/sharding.py."""
