"""Counter-based random numbers: a pure function of a key and an index.

A key is hashed on the host from (seed, purpose, step, path, ...). Element `i` of row `r` is a hash
of (key, r, i), in 32-bit integer arithmetic with the same results in NumPy and CuPy:

    row(r)     = mix(mix(r + k0) ^ k1)
    column(i)  = mix(mix(i + k2) ^ k3)
    bits(r, i) = mix(column(i) ^ row(r))

A rank that owns a slice of a tensor, or some samples of a batch, draws what one rank with all of it
would draw there. Of integers from 2**32 on, the upper word enters the second `mix`.
"""

from hashlib import blake2b
from struct import unpack
from typing import NamedTuple

import numpy as np

from nnmpi.arrays import meta
from nnmpi.arrays.backend import Array, xp_of
from nnmpi.arrays.native.table import Out, kernel


class Key(NamedTuple):
    """The key of a random stream: four 32-bit words, the hash of (seed, purpose, ...)."""

    k0: int
    k1: int
    k2: int
    k3: int


def key(*parts: int | str) -> Key:
    """Hashes these parts to a key, as in `key(seed, "dropout", step, path)`."""
    text = repr(tuple([p if isinstance(p, str) else int(p) for p in parts]))
    return Key._make(unpack("<4I", blake2b(text.encode(), digest_size=16).digest()))


def bits(k: Key, index: Array, row: Array) -> Array:
    """Returns 32 random bits for element `index` of row `row`, which broadcast."""
    return _mix(_hash(index, k.k2, k.k3) ^ _hash(row, k.k0, k.k1))


def uniform(k: Key, index: Array, row: Array) -> Array:
    """Draws float64 in (0, 1): 32 bits plus half a step, so log() is finite."""
    return (bits(k, index, row).astype("float64") + 0.5) * 2.0**-32


def flat_uniform(k: Key, n: int) -> Array:
    """Returns `uniform` for n elements of row 0, from the compiled hash."""
    return (flat_bits(k, n).astype("float64") + 0.5) * 2.0**-32


def normal(k: Key, index: Array, row: Array) -> Array:
    """Draws standard normal float64s, by Box-Muller of two uniform draws."""
    xp = xp_of(index)
    radius = xp.sqrt(-2.0 * xp.log(uniform(k, index, row)))
    other = Key(k.k1, k.k2, k.k3, k.k0 ^ 0x9E3779B9)
    return radius * xp.cos(2.0 * np.pi * uniform(other, index, row))


def permutation(k: Key, n: int) -> np.ndarray:
    """Returns a permutation of 0..n-1 (int64) that depends on the key only."""
    # stable: otherwise equal hashes could have another order on another machine
    return np.argsort(flat_bits(k, n), kind="stable")


def flat_bits(k: Key, n: int) -> np.ndarray:
    """Returns 32 random bits (uint32) for each of n elements."""
    drawn = meta.xp.empty(n, np.uint32) if meta.is_meta(k.k0) else np.empty(n, np.uint32)
    random_bits_loop(np.arange(n, dtype=np.uint32), np.zeros(1, np.int64), *k, drawn[None])
    return drawn


@kernel
def random_bits_loop(
    index: Array, rows: Array, k0: int, k1: int, k2: int, k3: int, random_bits: Out
) -> None:
    """Writes 32 random bits to element (r, i) of `random_bits` (n, m): a hash of rows[r], index[i]
    and the four 32-bit words k0 to k3 of a key."""
    random_bits[...] = bits(Key(k0, k1, k2, k3), index[None], rows[:, None])


def _hash(index: Array, first_word: int, second_word: int) -> Array:
    """Hashes the integers `index` to 32-bit words: adds a word of a key, mixes the bits, xors the
    other word, and mixes again. The upper word of 64-bit integers enters between the two rounds."""
    # not in place: in a recorded pass, the words of keys are arrays that have no data yet
    x = xp_of(index).array(index, "uint32") + first_word
    x = _mix(x[...])  # an array, also of one number
    x ^= second_word
    if index.dtype.itemsize > 4:
        x ^= (index >> 32).astype("uint32")
    return _mix(x)


def _mix(x: Array) -> Array:
    """Maps 32-bit words to others one to one, in place; every input bit affects every output bit.

    This is C. Wellons' `lowbias32` (public domain).
    """
    for shift, factor in ((16, 0x7FEB352D), (15, 0x846CA68B)):
        x ^= x >> shift
        x *= factor
    x ^= x >> 16
    return x
