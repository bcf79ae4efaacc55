"""Notes on arguments of PyTorch that are accepted and change nothing."""

import warnings


def note(text: str) -> None:
    """Shows a text as a warning, once in a process."""
    warnings.warn(text, stacklevel=1)  # Python shows a text once for each line that warns
