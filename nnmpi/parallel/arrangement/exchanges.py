"""Exchange: what ranks tell each other in some part of a step, as a value.

                                                    ┌─► sent     bytes and messages of a rank
    step on paper (paper/log.py) ─► [Exchange] ─────┤
                                                    └─► seconds  what they take on a machine

Counted are messages between ranks. Through memory that a node shares nothing is sent, and what the
MPI library sends in its own all-reduce is not known.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import pairwise
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from nnmpi.collectives import verify
from nnmpi.collectives.algorithms import ALGORITHMS, ALL_GATHERS, BROADCASTS, REDUCE_SCATTERS
from nnmpi.collectives.step import Algorithm, Collective, chunk_start
from nnmpi.parallel.arrangement.arrangement import Arrangement, node_leaders
from nnmpi.parallel.arrangement.cached import cached
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


def agreement(group: tuple[int, ...], numbers: int, what: str = "agreement") -> Exchange:
    """A sum of a short row of float64, before the update."""
    return Exchange(what, Collective.ALL_REDUCE, "doubling", group, numbers, FLOAT64, Kind.UPDATE)


# ---- Bytes and messages that a rank sends in an exchange, and the most it receives to add


class Traffic(NamedTuple):
    """Bytes and messages."""

    bytes: int = 0
    messages: int = 0

    def __add__(self, other: object) -> "Traffic":
        assert isinstance(other, Traffic)
        return Traffic(self.bytes + other.bytes, self.messages + other.messages)

    def __sub__(self, other: "Traffic") -> "Traffic":
        return Traffic(self.bytes - other.bytes, self.messages - other.messages)

    def times(self, n: int) -> "Traffic":
        """The bytes and messages multiplied by n."""
        return Traffic(self.bytes * n, self.messages * n)


AxisTraffic: TypeAlias = Mapping[str, Traffic]
"""The bytes and messages that a rank sends along each axis in a step."""

TRAFFIC_AXES = ("dp", "cp", "tp", "pp", "model")
"""The axes of the mesh as tables show them, and the ranks that hold one model together."""

MESSAGE = 1 << 30
"""The bytes of the longest message."""

RING, RING_SCATTER, RING_GATHER = ALGORITHMS["ring"], REDUCE_SCATTERS["ring"], ALL_GATHERS["ring"]
PASSES_OF_RINGS = {RING: (True, False), RING_SCATTER: (True,), RING_GATHER: (False,)}
"""The passes of rings, True where partial sums are passed on."""


def algorithm_traffic(
    algorithm: Algorithm,
    group: Sequence[int],
    rank: int,
    n: int,
    dtype: np.dtype,
    at: Sequence[int] = (),
    sums: np.dtype | None = None,
) -> Traffic:
    """The bytes and messages that a rank sends in an algorithm over n numbers; `at` are the edges
    of its chunks, `sums` is the type in which partial sums travel, if it is another one.

    A ring has a formula: a rank sends all chunks but one, which is its own among partial sums, and
    that of the rank to its right among complete ones.
    """
    p, r = len(group), group.index(rank)
    chunks, passes = algorithm.chunks(p), PASSES_OF_RINGS.get(algorithm)
    edge = at.__getitem__ if at else partial(chunk_start, n, chunks)
    itemsize = {True: (sums or dtype).itemsize, False: dtype.itemsize}
    if passes is not None:
        left_out = [(r if adds else r + 1) % p for adds in passes]
        pairs = zip(passes, left_out, strict=True)
        lengths = _lengths(n, chunks, at)
        return sum(
            (_all_but(lengths, edge(c + 1) - edge(c), itemsize[adds]) for adds, c in pairs),
            Traffic(),
        )
    total = Traffic()
    for step in algorithm.steps(r, p):
        if step.to >= 0:
            lo, hi = (edge(int(c)) for c in step.send)
            total += _messages(hi - lo, itemsize[bool(step.reduce)])
    return total


def _messages(n: int, itemsize: int) -> Traffic:
    """The bytes of n numbers, and the messages that carry them, none of which is too long."""
    return Traffic(n * itemsize, -(-n // (MESSAGE // itemsize)))


def _lengths(n: int, chunks: int, at: Sequence[int]) -> Mapping[int, int]:
    """How many chunks there are of each length."""
    if at:
        return Counter(b - a for a, b in pairwise(at))
    short, more = divmod(n, chunks)
    return {short: chunks - more, short + 1: more}


def _all_but(lengths: Mapping[int, int], left_out: int, itemsize: int) -> Traffic:
    """All chunks but one of this length."""
    return sum(
        (_messages(k, itemsize).times(count - (k == left_out)) for k, count in lengths.items()),
        Traffic(),
    )


def largest_receive(
    algorithm: Algorithm, group: Sequence[int], rank: int, n: int, at: Sequence[int] = ()
) -> int:
    """How many numbers a rank adds in a round at most: it receives these beside the buffer."""
    p, r = len(group), group.index(rank)
    chunks = algorithm.chunks(p)
    if algorithm in PASSES_OF_RINGS:
        lengths = (k for k, count in _lengths(n, chunks, at).items() if count)
        return max(lengths) if any(PASSES_OF_RINGS[algorithm]) else 0
    edge = at.__getitem__ if at else partial(chunk_start, n, chunks)
    received = (step.recv for step in algorithm.steps(r, p) if step.reduce and step.source >= 0)
    return max((edge(int(hi)) - edge(int(lo)) for lo, hi in received), default=0)


def algorithm_of_sum(
    a: Arrangement, name: str, group: Sequence[int], rank: int
) -> tuple[Algorithm, Sequence[int]] | None:
    """The algorithm of an all-reduce by name, and the ranks that carry it out; None for a rank that
    is not among them, and where no algorithm of ours sends anything."""
    if len(group) == 1 or name in ("mpi", "nccl"):  # which know their own ways
        return None
    first = [*node_leaders(a, tuple(group)).values()]
    if name in ("shared", "hierarchical") and len(first) > 1:
        algorithm, group = RING, first
    elif name == "shared":
        return None
    else:
        algorithm = ALGORITHMS.get(name) or _proven(a, name, len(group))
    return (algorithm, group) if rank in group else None


@cached
def _proven(a: Arrangement, name: str, p: int) -> Algorithm:
    """A user's algorithm, proved once for p ranks, however many of them ask."""
    return verify.proven(name, [p])


# ---- exchanges of an arrangement


def sent(a: Arrangement, exchange: Exchange, rank: int) -> Traffic:
    """The bytes and messages that a rank sends in a step for an exchange that it takes part in."""
    if len(exchange.group) == 1:
        return Traffic()
    return SENT[exchange.operation](a, exchange, rank).times(exchange.times)


def received(a: Arrangement, exchange: Exchange, rank: int) -> int:
    """The bytes into which a rank receives what it adds, beside the buffer."""
    if exchange.operation is Collective.ALL_REDUCE:
        carrier = algorithm_of_sum(a, exchange.algorithm, exchange.group, rank)
    elif exchange.operation is Collective.REDUCE_SCATTER and len(exchange.group) > 1:
        algorithm = PLANS[exchange.operation].get(exchange.algorithm)
        carrier = (algorithm, exchange.group) if algorithm else None
    else:
        carrier = None
    numbers = largest_receive(*carrier, rank, exchange.numbers, exchange.edges) if carrier else 0
    return numbers * (exchange.sums or exchange.dtype).itemsize


def _all_reduced(a: Arrangement, exchange: Exchange, rank: int) -> Traffic:
    carrier = algorithm_of_sum(a, exchange.algorithm, exchange.group, rank)
    return (
        algorithm_traffic(*carrier, rank, exchange.numbers, exchange.dtype, sums=exchange.sums)
        if carrier
        else Traffic()
    )


def _in_chunks(a: Arrangement, exchange: Exchange, rank: int) -> Traffic:
    algorithm = PLANS[exchange.operation].get(exchange.algorithm)
    if algorithm is None:  # NCCL's own
        return Traffic()
    return algorithm_traffic(
        algorithm,
        exchange.group,
        rank,
        exchange.numbers,
        exchange.dtype,
        exchange.edges,
        exchange.sums,
    )


def _to_each(a: Arrangement, exchange: Exchange, rank: int) -> Traffic:
    return Traffic(exchange.nbytes, len(exchange.group) - 1)


SENT: Mapping[Collective, Callable[[Arrangement, Exchange, int], Traffic]] = {
    Collective.ALL_REDUCE: _all_reduced,
    **dict.fromkeys(PLANS, _in_chunks),
    Collective.ALL_TO_ALL: _to_each,
    Collective.MESSAGE: _to_each,
}
