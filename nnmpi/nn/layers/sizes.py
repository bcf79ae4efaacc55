"""Checks of the sizes and names that layers are made with."""

from collections.abc import Collection, Sequence

import numpy as np

from nnmpi.arrays.kernels.window import Size


def check_sizes(layer: str, least: int, **sizes: int) -> None:
    """Refuse sizes that are not integers (NumPy's included) or are too small."""
    for name, size in sizes.items():
        if not isinstance(size, int | np.integer) or size < least:
            raise ValueError(f"{layer}: {name}={size!r} must be an integer, at least {least}")


def check_choice(layer: str, name: str, value: str, known: Collection[str]) -> None:
    """Raises ValueError unless a value is one of those that are known."""
    if value not in known:
        raise ValueError(f"{layer}: {name}={value!r} is none of {', '.join(known)}")


def each_axis(layer: str, axes: int, least: int, **size: Size) -> tuple[int, ...]:
    """One size for each axis, of one for all or a tuple of them; refuses what is no such size."""
    ((name, given),) = size.items()
    found = tuple(given) if isinstance(given, Sequence) else (given,) * axes
    if len(found) != axes or any(not isinstance(n, int | np.integer) or n < least for n in found):
        several = f" or a tuple of {axes}" if axes > 1 else ""
        raise ValueError(f"{layer}: {name}={given!r} must be an integer{several}, at least {least}")
    return found
