"""Adds the value "selective" to the option --recompute: only attention layers run again in the
backward pass."""

from nnmpi.options.features import AddOnOptions

ADDED = AddOnOptions(choices={"recompute": ("selective",)})
