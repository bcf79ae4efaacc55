"""Data parallelism: ranks compute parts of a batch, and sum gradients."""
