"""Parts of benchmarks/language.py."""
