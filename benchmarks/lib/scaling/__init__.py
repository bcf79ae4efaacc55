"""Parts of benchmarks/scaling.py."""
