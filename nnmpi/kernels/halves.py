"""Arrays in 16 bits: sums in float32, and ops that NumPy computes in float32 and rounds."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from nnmpi.backend import Array
from nnmpi.dtypes import is_half, on_host_in_16_bits
from nnmpi.kernels import Result, Vjp


def summed(a: Array, axis: Any = None, keepdims: bool = False) -> Array:
    """The sum over `axis`; of 16 bits it is added up in float32, and rounded once."""
    if is_half(a.dtype):
        return a.sum(axis=axis, keepdims=keepdims, dtype=np.float32).astype(a.dtype)
    return a.sum(axis=axis, keepdims=keepdims)


def averaged(a: Array, axis: Any = None, keepdims: bool = False) -> Array:
    """The mean over `axis`; of 16 bits it is added up in float32, and rounded once."""
    if is_half(a.dtype):
        return a.mean(axis=axis, keepdims=keepdims, dtype=np.float32).astype(a.dtype)
    return a.mean(axis=axis, keepdims=keepdims)


def computed(a: Array) -> Array:
    """An array as NumPy computes with it: 16 bits as a copy in float32."""
    return a.astype(np.float32) if on_host_in_16_bits(a) else a


def in_float32(op: Callable[..., Result], *arrays: Array) -> Result:
    """An op on copies in float32, which are kept for the backward pass where it reads them.

    Its value and the gradients have the type of the first array that has 16 bits.
    """
    dtype = next(a.dtype for a in arrays if on_host_in_16_bits(a))
    result = op(*map(computed, arrays))
    plain = result.prepare

    def prepare(g: Array, needs: Sequence[bool]) -> Any:
        g = g.astype(np.float32)
        return g if plain is None else plain(g, needs)

    def rounded(vjp: Vjp) -> Vjp:
        return lambda shared, out: vjp(shared, None).astype(dtype)

    return Result(result.value.astype(dtype), tuple(map(rounded, result.vjps)), prepare)
