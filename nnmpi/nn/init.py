"""Initial values as functions of a key and the index of an element: PyTorch's distributions.

They are dataclasses, not closures, so that a parameter can be copied and pickled.
"""

import math
from dataclasses import dataclass

import numpy as np

from nnmpi import keyed
from nnmpi.keyed import Key
from nnmpi.nn.parameter import Init

_ROW = np.zeros(1, np.int64)


@dataclass(frozen=True)
class constant:  # noqa: N801 (used like a function)
    """The same value everywhere."""

    value: float

    def __call__(self, key: Key, index: np.ndarray) -> np.ndarray:
        return np.full(index.shape, self.value)


@dataclass(frozen=True)
class uniform:  # noqa: N801
    """Uniform on (-bound, bound)."""

    bound: float

    def __call__(self, key: Key, index: np.ndarray) -> np.ndarray:
        return np.asarray((2 * keyed.uniform(key, index, _ROW) - 1) * self.bound)


@dataclass(frozen=True)
class normal:  # noqa: N801
    """Normal around 0."""

    std: float

    def __call__(self, key: Key, index: np.ndarray) -> np.ndarray:
        return np.asarray(keyed.normal(key, index, _ROW) * self.std)


def fan_in(n: int) -> Init:
    """Uniform within 1/sqrt(n): what PyTorch gives weights and biases with n inputs per output."""
    return uniform(1 / math.sqrt(n) if n else 0.0)
