"""Layers: modules from a tensor to a tensor."""
