"""Plans a run before it starts: finds a layout, and explains the predicted time of its steps."""
