"""Carrying out all-reduces."""
