"""Training: from options and data to a session, its loop, and recovery after the loss of ranks.

In this room: `Trainer`, `setup` (data, model, optimizer), sessions, the loop of epochs and steps,
recovery, and commands that need a model: planning a run, generating text, notebooks.
Elsewhere: files and reports (`io`); the choice of a strategy, which only `parallel` knows.
"""
