"""Random numbers that depend on a key and a place, never on who draws them or when.

A key is hashed on the host from (seed, purpose, step, path, ...). Element `i`
of row `r` is then a hash of (key, r, i), in 32-bit integer arithmetic that
NumPy and CuPy carry out alike:

    row(r)     = mix(mix(r + k0) ^ k1)
    column(i)  = mix(mix(i + k2) ^ k3)
    bits(r, i) = mix(column(i) ^ row(r))

so that a rank which owns a slice of a tensor, or some samples of a batch,
draws exactly what the one rank that owns everything would have drawn there.
Integers of 2**32 and more enter the second `mix` with their upper word.
"""

from hashlib import blake2b
from typing import NamedTuple

import numpy as np

from nnmpi.backend import Array, xp_of


class Key(NamedTuple):
    """Four 32-bit words that stand for (seed, purpose, ...)."""

    k0: int
    k1: int
    k2: int
    k3: int


def key(*parts: int | str) -> Key:
    """The key of these parts, as in `key(seed, "dropout", step, path)`."""
    text = repr(tuple(p if isinstance(p, str) else int(p) for p in parts))
    digest = blake2b(text.encode(), digest_size=16).digest()
    return Key(*(int.from_bytes(digest[i : i + 4], "little") for i in (0, 4, 8, 12)))


def bits(k: Key, index: Array, row: Array) -> Array:
    """uint32 for every element `index` of every `row` (integer arrays that broadcast)."""
    return _mix(_hash(index, k.k2, k.k3) ^ _hash(row, k.k0, k.k1))


def uniform(k: Key, index: Array, row: Array) -> Array:
    """float64 in (0, 1): 32 random bits and half a step, so that log() is safe."""
    return (bits(k, index, row).astype("float64") + 0.5) * 2.0**-32


def normal(k: Key, index: Array, row: Array) -> Array:
    """Standard normal float64 by Box and Muller, from two independent draws."""
    xp = xp_of(index)
    radius = xp.sqrt(-2.0 * xp.log(uniform(k, index, row)))
    other = Key(k.k1, k.k2, k.k3, k.k0 ^ 0x9E3779B9)
    return radius * xp.cos(2.0 * np.pi * uniform(other, index, row))


def permutation(k: Key, n: int) -> np.ndarray:
    """An order of 0..n-1 (int64) that depends on the key alone."""
    return np.argsort(bits(k, np.arange(n), np.zeros(1, np.int64)), kind="stable")


def _hash(place: Array, before: int, between: int) -> Array:
    """Two rounds over the lower words, with the upper words and a word of the key between."""
    x = xp_of(place).array(place, "uint32")
    x += before
    x = _mix(x)
    x ^= between
    if place.dtype.itemsize > 4:
        x ^= (place >> 32).astype("uint32")
    return _mix(x)


def _mix(x: Array) -> Array:
    """A bijection of 32-bit words, in place, in which every input bit moves every output bit.

    Multiply and xor-shift, with the constants C. Wellons found by search
    (`lowbias32`, public domain).
    """
    for shift, factor in ((16, 0x7FEB352D), (15, 0x846CA68B)):
        x ^= x >> shift
        x *= factor
    x ^= x >> 16
    return x
