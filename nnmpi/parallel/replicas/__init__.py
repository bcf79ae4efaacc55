"""Data parallelism: replicas compute parts of a batch, and their gradients are summed."""
