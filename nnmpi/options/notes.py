"""Shows warnings about arguments of PyTorch's functions that are accepted but have no effect."""

import warnings


def note(text: str) -> None:
    """Shows a text as a warning, once in a process."""
    warnings.warn(text, stacklevel=1)  # Python shows a text once for each line that warns
