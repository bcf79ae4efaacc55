"""What the benchmarks share; a folder for each benchmark that has several parts."""
