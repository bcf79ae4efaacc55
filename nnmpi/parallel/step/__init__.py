"""A training step on one rank: the executor, its ports, what it records, the update."""
