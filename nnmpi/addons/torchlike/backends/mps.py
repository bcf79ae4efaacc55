"""PyTorch's name for GPUs of Apple, on which nnmpi does not compute."""


def is_available() -> bool:
    """Returns False: nnmpi does not compute on GPUs of Apple."""
    return False


def is_built() -> bool:
    """Returns False: nnmpi has no code for GPUs of Apple."""
    return False
