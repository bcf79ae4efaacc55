"""PyTorch's name for GPUs of Apple, on which nnmpi does not compute."""


def is_available() -> bool:
    """False."""
    return False


def is_built() -> bool:
    """False."""
    return False
