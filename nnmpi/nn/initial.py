"""Initial values of parameters, as functions of a key and the index of an element.

The functions are dataclasses, not closures, so that a parameter can be copied and pickled. The key
is key(seed, "init", path), and the index is that in the whole tensor.
"""

import math
from dataclasses import dataclass

import numpy as np

from nnmpi.arrays import keyed
from nnmpi.arrays.keyed import Key
from nnmpi.nn.parameter import Init

ROW = np.zeros(1, np.int64)
"""The rows for which a key is drawn: one, number 0."""


@dataclass(frozen=True)
class constant:  # noqa: N801 (used like a function)
    """Initial values that are all equal to `value`."""

    value: float

    def __call__(self, key: Key, index: np.ndarray) -> np.ndarray:
        return np.full(index.shape, self.value)


@dataclass(frozen=True)
class uniform:  # noqa: N801
    """Initial values that are uniform on (mean - bound, mean + bound)."""

    bound: float
    mean: float = 0.0

    def __call__(self, key: Key, index: np.ndarray) -> np.ndarray:
        return np.asarray((2 * keyed.uniform(key, index, ROW) - 1) * self.bound + self.mean)


@dataclass(frozen=True)
class normal:  # noqa: N801
    """Initial values that are normal; values outside [low, high] are drawn again."""

    std: float
    mean: float = 0.0
    low: float = -math.inf
    high: float = math.inf

    def __call__(self, key: Key, index: np.ndarray) -> np.ndarray:
        values, left, row = np.zeros(index.shape), np.ones(index.shape, bool), ROW
        while left.any():
            # a new row of the key for each attempt: no element depends on how others are drawn
            values[left] = keyed.normal(key, index[left], row) * self.std + self.mean
            left, row = (values < self.low) | (values > self.high), row + 1
        return values


@dataclass(frozen=True)
class zero_within:  # noqa: N801
    """Initial values that are 0 for elements start..stop-1, counted in C order over the whole
    tensor, and those of `init` elsewhere. It sets the row of a padding index to 0."""

    init: Init
    start: int
    stop: int

    def __call__(self, key: Key, index: np.ndarray) -> np.ndarray:
        inside = (index >= self.start) & (index < self.stop)
        return np.where(inside, 0.0, self.init(key, index))


def fan_in(n: int) -> Init:
    """PyTorch's default for n inputs per output: uniform within 1/sqrt(n)."""
    return uniform(1 / math.sqrt(n) if n else 0.0)
