"""Draws algorithms, simulations and runs as text and SVG; computes nothing."""
