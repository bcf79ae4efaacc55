"""Parts of benchmarks/pipeline.py."""
