"""Pipelines: stages of a model on several ranks."""
