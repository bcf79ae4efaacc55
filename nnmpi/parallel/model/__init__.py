"""The part of a model that each rank has: pipeline stages, slices of tensors, snapshots of them,
and the moves between two arrangements of ranks."""
