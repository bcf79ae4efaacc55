"""Exchange: what ranks tell each other in some part of a step, as a value.

    along each axis (traffic.py) ─┐                 ┌─► sent     bytes and messages of a rank
                                  ├─► [Exchange] ───┤
    store (store_kinds.py) ───────┘                 └─► seconds  what they take on a machine

Counted are messages between ranks. Through memory that a node shares nothing is sent, and what the
MPI library sends in its own all-reduce is not known.
"""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np

from nnmpi.collectives.algorithms import ALL_GATHERS, BROADCASTS, REDUCE_SCATTERS
from nnmpi.collectives.collective import Collective
from nnmpi.parallel.arrangement.arrangement import Arrangement
from nnmpi.parallel.arrangement.sent import Sent, added, algorithm_of_sum, carried_out
from nnmpi.schedules.op import Kind

FLOAT64 = np.dtype(np.float64)


class Exchange(NamedTuple):
    """What a rank takes part in, once or several times in a step.

    what       what is told, in a word
    operation  a collective, or a message
    algorithm  that carries out a collective, by name
    group      the ranks that take part; of a message those that are at its ends
    numbers    of the buffer of a collective; of all-to-alls and messages, what the rank sends
    dtype      of a number
    during     the operations of the program in which it happens, of a stage if one is given
    edges      where the chunks begin, where they are not about equal
    times      how often it happens
    sums       the type in which partial sums travel, where it is another one
    """

    what: str
    operation: Collective
    algorithm: str
    group: tuple[int, ...]
    numbers: int
    dtype: np.dtype[Any]
    during: Kind
    stage: int = -1
    edges: tuple[int, ...] = ()
    times: int = 1
    sums: np.dtype[Any] | None = None

    @property
    def nbytes(self) -> int:
        """Of its numbers, once."""
        return self.numbers * self.dtype.itemsize

    @property
    def travelling(self) -> int:
        """The bytes of its numbers as they travel: half of an all-reduce are partial sums."""
        partial = self.numbers * (self.sums or self.dtype).itemsize
        is_whole = self.operation is Collective.REDUCE_SCATTER
        return partial if is_whole else (partial + self.nbytes) // 2


def agreed(group: tuple[int, ...], numbers: int, what: str = "agreement") -> Exchange:
    """A sum of a short row of float64, before the update."""
    return Exchange(what, Collective.ALL_REDUCE, "doubling", group, numbers, FLOAT64, Kind.UPDATE)


# ---- bytes and messages


def sent(a: Arrangement, one: Exchange, rank: int) -> Sent:
    """What a rank sends in an exchange that it takes part in, in a step."""
    if len(one.group) == 1:
        return Sent()
    return SENT[one.operation](a, one, rank).times(one.times)


def received(a: Arrangement, one: Exchange, rank: int) -> int:
    """The bytes into which a rank receives what it adds, beside the buffer."""
    if one.operation is Collective.ALL_REDUCE:
        found = algorithm_of_sum(a, one.algorithm, one.group, rank)
    elif one.operation is Collective.REDUCE_SCATTER and len(one.group) > 1:
        found = PLANS[one.operation][one.algorithm], one.group
    else:
        found = None
    numbers = added(*found, rank, one.numbers, one.edges) if found else 0
    return numbers * (one.sums or one.dtype).itemsize


def _all_reduced(a: Arrangement, one: Exchange, rank: int) -> Sent:
    found = algorithm_of_sum(a, one.algorithm, one.group, rank)
    return carried_out(*found, rank, one.numbers, one.dtype, sums=one.sums) if found else Sent()


def _in_chunks(a: Arrangement, one: Exchange, rank: int) -> Sent:
    algorithm = PLANS[one.operation][one.algorithm]
    return carried_out(algorithm, one.group, rank, one.numbers, one.dtype, one.edges, one.sums)


def _to_each(a: Arrangement, one: Exchange, rank: int) -> Sent:
    return Sent(one.nbytes, len(one.group) - 1)


PLANS = {
    Collective.REDUCE_SCATTER: REDUCE_SCATTERS,
    Collective.ALL_GATHER: ALL_GATHERS,
    Collective.BROADCAST: BROADCASTS,
}
"""The algorithms of the collectives, but all-reduces, by name."""

SENT: Mapping[Collective, Callable[[Arrangement, Exchange, int], Sent]] = {
    Collective.ALL_REDUCE: _all_reduced,
    **dict.fromkeys(PLANS, _in_chunks),
    Collective.ALL_TO_ALL: _to_each,
    Collective.MESSAGE: _to_each,
}
