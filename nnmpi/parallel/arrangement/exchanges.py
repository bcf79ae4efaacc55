"""Exchange: what ranks tell each other in some part of a step, as a value.

                                                    ┌─► sent     bytes and messages of a rank
    step on paper (paper/log.py) ─► [Exchange] ─────┤
                                                    └─► seconds  what they take on a machine

Counted are messages between ranks. Through memory that a node shares nothing is sent, and what the
MPI library sends in its own all-reduce is not known.
"""

from typing import Any, NamedTuple

import numpy as np

from nnmpi.collectives.algorithms import ALL_GATHERS, BROADCASTS, REDUCE_SCATTERS
from nnmpi.collectives.step import Collective
from nnmpi.schedules.op import Kind

FLOAT64 = np.dtype(np.float64)

PLANS = {
    Collective.REDUCE_SCATTER: REDUCE_SCATTERS,
    Collective.ALL_GATHER: ALL_GATHERS,
    Collective.BROADCAST: BROADCASTS,
}
"""The algorithms of the collectives, but all-reduces, by name."""


class Exchange(NamedTuple):
    """An exchange that a rank takes part in, once or several times in a step.

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
        """The bytes of its numbers, each time."""
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
