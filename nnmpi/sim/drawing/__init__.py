"""Text tables and SVG pictures of plans and of real runs; computes nothing of its own."""
