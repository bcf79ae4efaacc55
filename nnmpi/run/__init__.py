"""Training: makes a session from options and data, and runs its loop of epochs and steps. Files and
reports are in `io`; the choice of a strategy is in `parallel`."""
