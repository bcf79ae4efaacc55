"""Where parameters and gradients live."""
