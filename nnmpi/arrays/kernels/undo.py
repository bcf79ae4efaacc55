"""Undo: what an update keeps of the numbers that it changes, so that others can finish it.

    undo   [ done << 20 | n | ... ][ n numbers of each array that changes, one behind the other ]
             a note, in a cache line

    n = 0    `done` numbers are changed, and no other
    n > 0    behind these, n numbers are half changed: they were as they are kept here

Arrays that change side by side take turns, a block at a time:

    the block ─► undo;  n = its length;  it is changed;  done += n, n = 0

Who goes on from `done` puts the block back that is half changed. The note is one number, so it is
never half written. Blocks may have any length, so it does not matter who has begun: the compiled
kernels (`native/optimizers.c`) keep short blocks, which stay in the first cache, NumPy longer ones.
"""

from collections.abc import Iterator, Sequence

import numpy as np

from nnmpi.arrays.backend import Array
from nnmpi.arrays.meta import is_meta

NOTE_BYTES, LENGTH_BITS = 64, 20


def note(undo: Array) -> Array:
    """The note, an array of one number."""
    word: Array = undo[: NOTE_BYTES // undo.itemsize].view(np.int64)[:1]
    return word


def done(undo: Array) -> int:
    """How many numbers are changed: none of those without numbers."""
    return 0 if is_meta(undo) else int(note(undo)[0]) >> LENGTH_BITS


def blocks(arrays: Sequence[Array], most: int, undo: Array) -> Iterator[slice]:
    """Parts of arrays of one length, of at most so many numbers, each of which is changed before
    the next one is asked for. The arrays begin with what is not done."""
    word, kept = note(undo), undo.view(np.uint8)[NOTE_BYTES:]
    at, n = divmod(int(word[0]), 1 << LENGTH_BITS)
    for array, copy in zip(arrays, _copies(arrays, kept, n), strict=True):
        array[:n] = copy
    word[0] = at << LENGTH_BITS
    most = min(most, len(kept) // sum(array.itemsize for array in arrays), (1 << LENGTH_BITS) - 1)
    for lo in range(0, len(arrays[0]), most):
        part = slice(lo, min(lo + most, len(arrays[0])))
        n = part.stop - lo
        for array, copy in zip(arrays, _copies(arrays, kept, n), strict=True):
            copy[...] = array[part]
        word[0] = at + lo << LENGTH_BITS | n
        yield part
        word[0] = at + lo + n << LENGTH_BITS


def _copies(arrays: Sequence[Array], kept: Array, n: int) -> Iterator[Array]:
    """Where n numbers of each array are kept, one behind the other."""
    at = 0
    for array in arrays:
        end = at + n * array.itemsize
        yield kept[at:end].view(array.dtype)
        at = end
