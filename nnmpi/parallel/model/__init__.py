"""The part of a model that each rank has: stages, slices of tensors, the arrays of its state, and
moving the state to another arrangement."""
