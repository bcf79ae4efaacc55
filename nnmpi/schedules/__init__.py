"""Schedules as values: what a rank does in a step, and in which order."""
