"""What ranks have of a model: parts of tensors, whole tensors one at a time, stages."""
