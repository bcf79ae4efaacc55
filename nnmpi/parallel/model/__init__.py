"""The parts of a model that ranks have: parts of tensors, whole tensors one at a time, stages."""
