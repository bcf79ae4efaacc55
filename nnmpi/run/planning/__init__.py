"""Plans a run before it starts: finds a layout, and explains its time."""
