"""States: what a model's parameters and buffers are by name, and whether one fits another."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from nnmpi import backend
from nnmpi.autograd import Tensor


def fitting(state: Mapping[str, Any], targets: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """The state on the host, if all names and shapes are those of the targets."""
    values: dict[str, np.ndarray] = {}
    problems = []
    for name, target in targets.items():
        shape = tuple(target.shape)
        if name not in state:
            problems.append(f"{name} {shape} is missing")
            continue
        value = values[name] = _on_host(state[name])
        if value.shape != shape:
            problems.append(f"{name} is {shape} here and {value.shape} there")
        elif value.dtype.kind not in "fiub":
            problems.append(f"{name} holds {value.dtype}, not numbers")
    problems += [f"{name} is not part of this model" for name in state if name not in targets]
    if problems:
        more = f" and {len(problems) - 4} more" if len(problems) > 4 else ""
        raise ValueError(f"state does not fit: {'; '.join(problems[:4])}{more}")
    return values


def assign(target: Any, value: np.ndarray) -> None:
    """Write a host array into a parameter or a buffer, on whatever backend it is."""
    array = target.data if isinstance(target, Tensor) else target
    array[...] = backend.of(array).asarray(value, array.dtype)
    if isinstance(target, Tensor):
        target.mark_written()


def _on_host(value: Any) -> np.ndarray:
    """An entry of a state as a NumPy array: a tensor, an array of any library, or numbers."""
    value = value.data if isinstance(value, Tensor) else value
    return backend.to_host(value) if backend.is_array(value) else np.asarray(value)
