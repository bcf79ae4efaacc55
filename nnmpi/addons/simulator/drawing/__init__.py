"""Draws algorithms, simulations and real runs as text tables and SVG pictures; computes nothing of
its own."""
