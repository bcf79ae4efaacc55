"""Which way to an all-reduce is the fastest on this machine, for a number of bytes.

Plans are predicted: what messages and additions cost is measured, and each plan is priced with it.
Those that promise most are then timed, beside the ways that no plan describes: the library's own
and shared memory.
"""

from collections.abc import Sequence
from functools import partial
from typing import NamedTuple, Self

import numpy as np

from nnmpi.collectives.algorithms import ALGORITHMS
from nnmpi.collectives.price import Network, price
from nnmpi.comm.allreduce import measure
from nnmpi.comm.allreduce.dispatch import NAMES, TOGETHER
from nnmpi.comm.allreduce.interpreter import Array
from nnmpi.comm.transport.base import NoRoomError

SIZES = tuple(256 << 2 * k for k in range(9))  # bytes, to 16 MiB
LONG = 0.02  # seconds: where one sum takes longer, larger sizes are not timed
NEVER = 1e9  # seconds of what cannot be done
PROMISING = 2  # plans that are timed at each size
FINE = 4  # sizes from one power of two to the next that are told apart


class Choice(NamedTuple):
    """A name for each size."""

    names: tuple[str, ...]

    def without(self, name: str) -> Self:
        """The same, but for a way that cannot be gone: what needs least takes its place."""
        return type(self)(tuple("halving" if n == name else n for n in self.names))

    @classmethod
    def of(cls, times: dict[str, list[float]]) -> Self:
        """The fastest by the times that each name took at SIZES, or the first of them."""
        return cls(tuple(_fastest(times, nbytes) for nbytes in _grid()))

    def name(self, nbytes: int) -> str:
        return self.names[min(_index(nbytes), len(self.names) - 1)]


def measure_choice(trial: measure.Timed) -> Choice:
    """Times what may be the fastest, on a Comm made for it; all ranks get the same choice."""
    names = _said(trial, _promising(trial.size, measure.network(trial)))
    times: dict[str, list[float]] = {name: [] for name in names}
    for nbytes in SIZES:
        array = np.zeros(nbytes // 4, np.float32)
        fit = [name for name in names if name not in TOGETHER or _fits(trial, array, name)]
        calls = [partial(trial.all_reduce, array, name) for name in fit]
        seconds = dict(zip(fit, measure.medians(trial, calls), strict=True))
        for name in names:
            times[name].append(seconds.get(name, NEVER))
        if max(seconds.values()) > LONG:
            break
    return Choice(tuple(_said(trial, Choice.of(times).names)))


def _fits(trial: measure.Timed, array: Array, name: str) -> bool:
    """Whether there is shared memory for it."""
    try:
        trial.all_reduce(array, name)
    except NoRoomError:
        return False
    return True


def _said(trial: measure.Timed, names: Sequence[str]) -> list[str]:
    """What rank 0 says: the ranks' processors need not agree to the last bit."""
    words = np.full(1 + FINE * 64, -1)
    words[: len(names)] = [NAMES.index(name) for name in names]
    trial.broadcast(words)
    return [NAMES[i] for i in words if i >= 0]


def _promising(p: int, network: Network) -> list[str]:
    """The plans that are predicted to be the fastest at any size, and what has no plan."""
    found = set()
    for nbytes in SIZES:
        predicted = {name: price(a, p, nbytes, network).seconds for name, a in ALGORITHMS.items()}
        found.update(sorted(predicted, key=predicted.__getitem__)[:PROMISING])
    return [name for name in NAMES if name in found or name not in ALGORITHMS]


def _fastest(times: dict[str, list[float]], nbytes: int) -> str:
    """By times between the sizes that were timed, on a log-log scale."""

    def at(name: str) -> float:
        row = times[name]
        return float(np.interp(np.log(nbytes), np.log(SIZES[: len(row)]), np.log(row)))

    return min(times, key=at)


def _index(nbytes: int) -> int:
    """FINE log2 of a number of bytes, roughly: from its length in bits and the next two bits."""
    n = max(nbytes, FINE)
    bits = n.bit_length()
    return FINE * (bits - 3) + (n >> (bits - 3) & (FINE - 1))


def _grid() -> list[int]:
    """The smallest size of each index."""
    return [(FINE + i % FINE) << i // FINE for i in range(_index(SIZES[-1]) + 1)]
