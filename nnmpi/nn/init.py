"""Initial values as functions of a key and an element's index: PyTorch's distributions."""

import math

import numpy as np

from nnmpi import keyed
from nnmpi.nn.parameter import Init


def constant(value: float) -> Init:
    """The same value everywhere."""
    return lambda key, index: np.full(index.shape, value)


def uniform(bound: float) -> Init:
    """Uniform on (-bound, bound)."""
    return lambda key, index: (2 * keyed.uniform(key, index, _ROW) - 1) * bound


def normal(std: float) -> Init:
    """Normal around 0."""
    return lambda key, index: keyed.normal(key, index, _ROW) * std


def fan_in(n: int) -> Init:
    """Uniform within 1/sqrt(n): what PyTorch gives weights and biases with n inputs per output."""
    return uniform(1 / math.sqrt(n) if n else 0.0)


_ROW = np.zeros(1, np.int64)
