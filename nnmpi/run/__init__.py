"""Training: makes a session (all that ranks need to train a model together) from options and data,
and runs its loop.

This folder contains `Trainer`, `setup` (data, model, optimizer), sessions, and the loop of epochs
and steps. Files and reports are in `io`; the choice of a strategy is in `parallel`.
"""
