"""Parts of benchmarks/communication.py."""
