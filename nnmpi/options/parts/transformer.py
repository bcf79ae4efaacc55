"""The value of --recompute for attention."""

from nnmpi.options.features import Part

PART = Part(choices={"recompute": ("selective",)})
