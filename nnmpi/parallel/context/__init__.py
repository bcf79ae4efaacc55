"""Context parallelism: sequences whose positions are divided among the ranks along cp."""
