"""Generates text with a model, token by token: during training, or with a model from a file."""
