"""Text tables and SVG pictures of plans and of real runs; it computes nothing of its own."""
