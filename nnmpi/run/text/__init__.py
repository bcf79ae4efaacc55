"""Generates text with a model, token by token: in training, and from a file."""
