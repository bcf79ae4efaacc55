"""Data parallelism: each rank computes a part of the batch, and the gradients are summed over
ranks."""
