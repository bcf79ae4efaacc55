"""Layers: modules that map a tensor to a tensor."""
