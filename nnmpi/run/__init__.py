"""Training: makes a session (all that ranks need to train a model together) from options and data,
and runs its loop.

This folder contains `Trainer`, `setup` (data, model, optimizer), sessions, the loop of epochs and
steps, and add-ons that need a session or a model, such as recovery after the loss of ranks. Files
and reports are in `io`; the choice of a strategy is in `parallel`.
"""
