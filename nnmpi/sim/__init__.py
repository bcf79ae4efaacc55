"""The simulator: what plans cost and what they look like, without executing them."""
