"""Measures the fastest all-reduce for each message size on this machine; each is timed once.

Algorithms that a price rules out on any machine are not timed.
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
    """The methods of a Comm that measurements use."""

    size: int
    system: System

    def all_reduce(self, array: Array, algorithm: str = ...) -> None: ...
    def broadcast(self, array: Array) -> None: ...
    def barrier(self) -> None: ...


class AlgorithmChoice(NamedTuple):
    """The name of the fastest algorithm for each of the first entries of SIZES."""

    names: tuple[str, ...]

    def without(self, name: str) -> Self:
        """This choice with `halving` in place of an algorithm that cannot be used."""
        return type(self)(tuple("halving" if n == name else n for n in self.names))

    def name(self, nbytes: int) -> str:
        """The fastest algorithm at the measured size that is nearest to `nbytes` on a log scale."""
        nearest = (nbytes.bit_length() - SUM_BYTES[0].bit_length() + 1) // 2
        return self.names[min(max(nearest, 0), len(self.names) - 1)]


Cost: TypeAlias = tuple[float, int, int]
"""Bytes that follow each other, of a buffer of one byte; rounds; messages of a rank, at most."""


def rules_out(x: Cost, y: Cost) -> bool:
    """True if cost x is no larger than y in any way, and has fewer bytes, or fewer messages in as
    many rounds: on one level, no network makes y faster."""
    is_no_larger = all(a <= b for a, b in zip(x, y, strict=True))
    return x != y and is_no_larger and (x[0] < y[0] or x[1] == y[1])


def candidates(p: int) -> list[str]:
    """The names of the all-reduces that no other one rules out; many ranks are priced as fewer."""
    p >>= max(p.bit_length() - 8, 0)
    costs = dict[str, Cost]()
    for name in ALGORITHMS.keys() - NEED_SETUP:
        paid = price(ALGORITHMS[name], p, 1.0, Network(Link(0.0, 1.0)))
        costs[name] = round(paid.seconds, 9), paid.rounds, int(paid.messages.max())
    ruled_out = {name for name, y in costs.items() for x in costs.values() if rules_out(x, y)}
    return [name for name in NAMES if name not in ruled_out]


def measure_choice(trial: TimedComm) -> AlgorithmChoice:
    """Times candidates on a trial Comm; collective, with the same result on all ranks."""
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
    """The median seconds of collective calls that are timed in turns, averaged over the ranks."""
    first = [_agreed(comm, [_timed(comm, call)])[0] for call in calls]
    repeats = min(max(int(SECONDS * len(calls) / max(sum(first), 1e-9)), 5), 30)
    rows = [[_timed(comm, call) for call in calls] for _ in range(repeats)]
    return _agreed(comm, np.median(rows, axis=0).tolist())


def _timed(comm: TimedComm, call: Callable[[], object]) -> float:
    """The seconds of the second of two calls, which finds its memory in the cache."""
    call()
    comm.barrier()  # otherwise the time would include waiting for a rank that comes late
    start = comm.system.clock()
    call()
    return comm.system.clock() - start


def _agreed(comm: TimedComm, seconds: Sequence[float]) -> list[float]:
    """The mean of each value over the ranks, so that all ranks decide alike."""
    total = np.array(seconds, float)
    comm.all_reduce(total, "ring")
    return [float(x) / comm.size for x in total]


def fits(call: Callable[[], object]) -> bool:
    """Makes a collective call; returns False if it raises NoRoomError for lack of shared memory."""
    try:
        call()
    except NoRoomError:
        return False
    return True
