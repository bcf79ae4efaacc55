"""Context parallelism: sequences cut over ranks, keys and values around a ring."""
