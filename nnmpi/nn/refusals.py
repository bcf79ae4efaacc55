"""What modules refuse, in one line each."""

from collections.abc import Callable
from typing import Any, NoReturn

import numpy as np


def inside_itself(owner: str, name: str, value: Any) -> ValueError:
    """A tree of modules would have a circle."""
    return ValueError(
        f"{owner}.{name}: a module cannot contain itself, or a {type(value).__name__} that it is "
        "part of"
    )


def in_a_container(owner: str, name: str, value: Any) -> ValueError:
    """Modules or parameters are in a list, a tuple or a dict."""
    return ValueError(
        f"{owner}.{name}: modules and parameters in a {type(value).__name__} would not be part of "
        "the model; use nn.ModuleList, nn.ModuleDict or nn.Sequential for modules, and "
        "nn.ParameterList for parameters"
    )


def replaced(owner: str, name: str, kind: str, value: Any) -> ValueError:
    """A parameter or a module would become something else."""
    return ValueError(
        f"{owner}.{name} is a {kind} and cannot become a {type(value).__name__}: assign a {kind} "
        f"or None{', or write into .data' if kind == 'Parameter' else ''}"
    )


def check_dtype(dtype: Any) -> None:
    """Raises ValueError unless it is None or a data type."""
    try:
        np.dtype(dtype)
    except TypeError:
        raise ValueError(
            f"to: {dtype!r} is no data type; a device is given as "
            'to(dtype=..., on=nnmpi.backend.get("cuda"))'
        ) from None


def hook(name: str) -> Callable[..., NoReturn]:
    """A method in the place of PyTorch's for registering a hook."""

    def method(self: Any, *args: Any, **options: Any) -> NoReturn:
        raise NotImplementedError(
            f"{name}: nnmpi has forward hooks of modules, and no others; write what it would do "
            'into forward, or around the call (docs/library.md, "What stays out")'
        )

    return method
