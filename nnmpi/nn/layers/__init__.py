"""Layers: modules that map a tensor to a tensor."""

from nnmpi.addons import finder

__path__.append(finder.ENTRY)
