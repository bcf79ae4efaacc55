"""What benchmarks/gpu_minutes.py measures."""
