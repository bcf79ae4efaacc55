"""Measures which all-reduce algorithm is the fastest at each message size on this machine.

An algorithm is not timed if another one is at least as fast on every machine, by a model of the
cost.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple, Protocol, Self, TypeAlias

import numpy as np

from nnmpi.collectives.algorithms import ALGORITHMS
from nnmpi.collectives.price import Link, Network, price
from nnmpi.comm.allreduce.dispatch import NAMES, NEED_SETUP
from nnmpi.comm.arguments import Array
from nnmpi.comm.transport.base import NoRoomError
from nnmpi.comm.transport.system import System

SUM_BYTES = tuple(256 << 2 * k for k in range(9))  # bytes, up to 16 MiB
SECONDS = 0.004  # spent on one algorithm at one size
MOST_SECONDS = 0.02  # seconds: if one sum takes longer, larger sizes are not timed
# From this size on bandwidth dominates and the order of the algorithms hardly changes: an algorithm
# that takes twice as long as the fastest is not timed at larger sizes.
LARGE = 1 << 16


class TimedComm(Protocol):
    """The interface that objects need to time all-reduces on them: some methods of a Comm."""

    size: int
    system: System

    def all_reduce(self, array: Array, algorithm: str = ...) -> None: ...
    def broadcast(self, array: Array) -> None: ...
    def barrier(self) -> None: ...


class AlgorithmChoice(NamedTuple):
    """The fastest all-reduce, by name, for each measured message size SUM_BYTES[k]."""

    names: tuple[str, ...]

    def without(self, name: str) -> Self:
        """Returns a copy with `halving` in place of an algorithm that cannot be used here."""
        return type(self)(tuple("halving" if n == name else n for n in self.names))

    def name(self, nbytes: int) -> str:
        """Returns the fastest algorithm at the measured size nearest to `nbytes` on a log scale."""
        nearest = (nbytes.bit_length() - SUM_BYTES[0].bit_length() + 1) // 2
        return self.names[min(max(nearest, 0), len(self.names) - 1)]


Cost: TypeAlias = tuple[float, int, int]
"""Modelled cost: serial bytes per byte, rounds, and the most messages of a rank."""


def rules_out(x: Cost, y: Cost) -> bool:
    """Returns True if an algorithm of cost y need not be timed: one of cost x is at least as fast
    on every flat network, whatever its latency and bandwidth.

    None of bytes, rounds and messages is larger in x, and x has fewer bytes, or as many rounds with
    fewer messages.
    """
    is_no_larger = all(a <= b for a, b in zip(x, y, strict=True))
    return x != y and is_no_larger and (x[0] < y[0] or x[1] == y[1])


def candidates(p: int) -> list[str]:
    """Returns the names of the all-reduces worth timing on p ranks: no other costs less on any
    network.

    From 256 ranks on, costs are computed for p / 2**k ranks, at most 255, to save time.
    """
    p >>= max(p.bit_length() - 8, 0)
    costs = dict[str, Cost]()
    for name in ALGORITHMS.keys() - NEED_SETUP:
        paid = price(ALGORITHMS[name], p, 1.0, Network(Link(0.0, 1.0)))
        costs[name] = round(paid.seconds, 9), paid.rounds, int(paid.messages.max())
    ruled_out = {name for name, y in costs.items() for x in costs.values() if rules_out(x, y)}
    return [name for name in NAMES if name not in ruled_out]


def measure_choice(trial: TimedComm) -> AlgorithmChoice:
    """Times the candidate all-reduces through the Comm `trial`, and returns the fastest at each
    size.

    Collective; the result is the same on all ranks.
    """
    names, fastest = candidates(trial.size), []
    for nbytes in SUM_BYTES:
        array = np.zeros(nbytes // 4, np.float32)
        names = [name for name in names if fits(partial(trial.all_reduce, array, name))]
        if not names:  # only `shared` was left, and there is no memory for this size
            fastest.append("halving")
            break
        calls = [partial(trial.all_reduce, array, name) for name in names]
        seconds = dict(zip(names, medians(trial, calls), strict=True))
        fastest.append(min(names, key=seconds.__getitem__))
        if max(seconds.values()) > MOST_SECONDS:
            break
        if nbytes >= LARGE:
            names = [name for name in names if seconds[name] < 2 * seconds[fastest[-1]]]
    return AlgorithmChoice(tuple(fastest))


def medians(comm: TimedComm, calls: Sequence[Callable[[], object]]) -> list[float]:
    """Returns the median seconds of each of several collective calls, averaged over the ranks.

    The calls are timed in turns, so that a slow phase of the machine affects all of them.
    """
    first = [_agreed(comm, [_timed(comm, call)])[0] for call in calls]
    repeats = min(max(int(SECONDS * len(calls) / max(sum(first), 1e-9)), 5), 30)
    rows = [[_timed(comm, call) for call in calls] for _ in range(repeats)]
    return _agreed(comm, np.median(rows, axis=0).tolist())


def _timed(comm: TimedComm, call: Callable[[], object]) -> float:
    """Makes a collective call twice; returns the seconds of the second, with warm caches."""
    call()
    comm.barrier()  # otherwise the time would include waiting for a rank that comes late
    start = comm.system.clock()
    call()
    return comm.system.clock() - start


def _agreed(comm: TimedComm, seconds: Sequence[float]) -> list[float]:
    """Returns the mean over ranks of each number, so that all decide alike; collective."""
    total = np.array(seconds, float)
    comm.all_reduce(total, "ring")
    return [float(x) / comm.size for x in total]


def fits(call: Callable[[], object]) -> bool:
    """Makes a collective call; returns False if shared memory is lacking for it."""
    try:
        call()
    except NoRoomError:
        return False
    return True
