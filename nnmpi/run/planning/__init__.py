"""The plan of a run before it is started: which layout, and what is said of it."""
