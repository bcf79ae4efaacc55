"""Plans on paper: what they cost and what they look like, without carrying them out."""
