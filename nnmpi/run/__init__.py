"""Training: from options and data to a session and its loop.

In this room: `Trainer`, `setup` (data, model, optimizer), sessions, the loop of epochs and steps,
and add-ons that need a session or a model, such as recovery after the loss of ranks.
Elsewhere: files and reports (`io`); the choice of a strategy, which only `parallel` knows.
"""
