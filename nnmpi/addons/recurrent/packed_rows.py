"""Where the positions of sequences of different lengths are stored, without padding.

The rows of all steps are stored one step after another. Within a step, sequences are sorted by
descending length; so the sequences that are still running come first, and no row is padding:

    lengths 2 4 1    order 1 0 2    rows    step 0: 1 0 2    step 1: 1 0    step 2: 1    step 3: 1
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from nnmpi.arrays.backend import Array, xp_of


class PackedRows(NamedTuple):
    """Where each position of sequences of different lengths is stored, without padding ("packed").

    steps  for each step the slice of its rows, and their number
    at     the position and the sequence of each row; None if all sequences are equally long
    order  the sequences sorted by descending length; None if all are equally long
    """

    steps: list[tuple[slice, int]]
    at: tuple[Array, Array] | None
    order: Array | None

    def pack(self, x: Array) -> Array:
        """Returns the rows (P, K) of x (T or more, N, K) in packed order."""
        if self.at is None:
            return x[: len(self.steps)].reshape(-1, x.shape[2])
        return x[self.at]

    def take(self, x: Array, which: Array) -> Array:
        """Returns those rows of x (T, N, K) whose numbers in packed order are `which`."""
        N = x.shape[1]
        at = (which // N, which % N) if self.at is None else (a[which] for a in self.at)
        return x[*at]

    def unpack(self, rows: Array, x: Array) -> None:
        """Writes packed rows to x (T, N, K), and 0 to its padding: the inverse of `pack`."""
        if self.at is None:
            x[: len(self.steps)] = rows.reshape(len(self.steps), *x.shape[1:])
        else:
            x[...] = 0
            x[self.at] = rows

    def sorted(self, state: Array) -> Array:
        """A copy of a state (N, H) with its sequences sorted by descending length."""
        return state.copy() if self.order is None else state[self.order]

    def unsorted(self, state: Array) -> Array:
        """Returns a state (N, H), sorted by descending length, with its rows in original order."""
        if self.order is None:
            return state
        unsorted_state = xp_of(state).empty_like(state)
        unsorted_state[self.order] = state
        return unsorted_state


def packed(T: int, N: int, lengths: Sequence[int] | None, reverse: bool, xp: Any) -> PackedRows:
    """Computes where positions of N sequences, at most T long, are stored; with `reverse`, steps
    are run from the last position to the first."""
    if lengths is None:
        sizes, at, order = [N] * T, None, None
    else:
        all_lengths = np.asarray(lengths, np.int64)
        host = np.argsort(-all_lengths, kind="stable")
        sizes = [int(n) for n in (all_lengths > np.arange(T)[:, None]).sum(axis=1)]
        order = xp.asarray(host)
        index = [np.zeros(0, np.int64), *(host[:n] for n in sizes)]
        at = xp.asarray(np.repeat(np.arange(T), sizes)), xp.asarray(np.concatenate(index))
    ends = np.cumsum([0, *sizes])
    steps = [(slice(int(end) - n, int(end)), n) for end, n in zip(ends[1:], sizes, strict=True)]
    return PackedRows(steps[::-1] if reverse else steps, at, order)
