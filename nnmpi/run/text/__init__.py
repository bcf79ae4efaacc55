"""Text from a model: tokens one after the other, in training and from a file."""
