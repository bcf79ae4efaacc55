"""The part of a model that each rank has: pipeline stages, slices of tensors, snapshots of the
state, and its redistribution to another arrangement of ranks."""
