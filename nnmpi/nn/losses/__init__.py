"""Losses: modules from predictions and targets to a scalar."""
