"""Exchange: a collective or message in a training step, described to compute its bytes and time.

                                                    ┌─► sent     bytes and messages of a rank
    walked step (parallel/facts/) ► [Exchange] ─────┤
                                                    └─► seconds  the time on a machine

Only messages between ranks are counted. Ranks that share memory send nothing through it, and the
messages of the MPI library's own all-reduce are unknown.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import pairwise
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from nnmpi.arrays.dtypes import types_of
from nnmpi.collectives.algorithms import ALGORITHMS, Collective
from nnmpi.collectives.gossip import GRAPHS
from nnmpi.collectives.step import Algorithm, Pieces, Step, chunk_start, in_rounds
from nnmpi.parallel.arrangement.arrangement import Arrangement, node_leaders
from nnmpi.parallel.arrangement.cached import cached
from nnmpi.parallel.arrangement.cluster import LIBRARY_SUMS
from nnmpi.parallel.mesh import REPLICAS
from nnmpi.schedules.op import NONE, Kind

FLOAT64 = np.dtype(np.float64)


class Exchange(NamedTuple):
    """A collective or message that a rank takes part in, once or several times in a step.

    what        one word for the content, used in tables
    algorithm   that of the collective, or the name of a graph of neighbours
    group       the ranks that take part; for a message, the sender and the receivers
    elements    in the buffer of a collective; of a message, those that this rank sends
    during      the kind of operation (forward pass, sum, ...) during which it happens
    stage       the stage of that operation; -1 if it belongs to none
    edges       the boundaries of the chunks of the buffer; (): chunks of about equal length
    every       n: it happens in one of n steps, where replicas make local steps
    sums        the dtype in which partial sums are sent, if not `dtype`
    """

    what: str
    operation: Collective
    algorithm: str
    group: tuple[int, ...]
    elements: int
    dtype: np.dtype[Any]
    during: Kind
    stage: int = NONE
    edges: tuple[int, ...] = ()
    times: int = 1
    every: int = 1
    sums: np.dtype[Any] | None = None

    @property
    def nbytes(self) -> int:
        """The bytes of the buffer, counted once, not `times`."""
        return self.elements * self.dtype.itemsize

    @property
    def wire_bytes(self) -> int:
        """The bytes of the buffer as it is sent: a pass that adds up may send partial sums in a
        wider dtype, `sums`. If the collective also copies, this is the mean of the two."""
        partial, passes = self.elements * (self.sums or self.dtype).itemsize, self.operation.passes
        return sum(partial if adds else self.nbytes for adds in passes) // len(passes)


AxisExchange: TypeAlias = tuple[str, Exchange]
"""An axis of the mesh, and an exchange along it."""

SCALARS = "doubling"
"""The all-reduce of a few numbers."""


def new_exchange(
    a: Arrangement,
    word: str,
    operation: Collective,
    algorithm: str,
    group: tuple[int, ...],
    elements: int,
    dtype: np.dtype[Any],
    during: Kind,
    stage: int = NONE,
    edges: tuple[int, ...] = (),
) -> Exchange:
    """Returns an Exchange whose 16-bit terms are added up in float32, unless the arrangement says
    that ranks send them in 16 bits."""
    narrow = a.is_mixed and a.sums_dtype is None
    is_wide = True in operation.passes and types_of(dtype).is_mixed and not narrow
    sums = types_of(dtype).sums if is_wide else None
    how = word, operation, algorithm, group, elements, np.dtype(dtype), during
    return Exchange(*how, stage=stage, edges=edges, sums=sums)


# ---- the traffic of a rank in an algorithm, and the most that it receives at a time


class Traffic(NamedTuple):
    """Bytes and messages that a rank sends; means have fractions of messages."""

    bytes: int = 0
    messages: float = 0

    def __add__(self, other: object) -> "Traffic":
        assert isinstance(other, Traffic)
        return Traffic(self.bytes + other.bytes, self.messages + other.messages)

    def __sub__(self, other: "Traffic") -> "Traffic":
        return Traffic(self.bytes - other.bytes, self.messages - other.messages)

    def times(self, n: int) -> "Traffic":
        """Returns n times this traffic."""
        return Traffic(self.bytes * n, self.messages * n)

    def over(self, steps: int) -> "Traffic":
        """Returns the mean traffic of one of `steps` steps, in whole bytes."""
        messages = self.messages / steps
        return Traffic(
            round(self.bytes / steps), int(messages) if messages.is_integer() else messages
        )


AxisTraffic: TypeAlias = Mapping[str, Traffic]
"""The traffic of a rank in a step, by the axis along which it is sent."""

TRAFFIC_AXES = (*REPLICAS, "tp", "pp", "model")
"""The axes of traffic: the mesh's, and "model" for ranks that hold one model."""

MESSAGE = 1 << 30
"""The bytes of the longest message; longer ones are split."""

RING = ALGORITHMS["ring"]
PASSES_OF_RINGS = {c.algorithms["ring"]: c.passes for c in Collective if "ring" in c.algorithms}
"""Passes of ring algorithms: True adds partial sums, False copies complete ones."""


def algorithm_traffic(
    algorithm: Algorithm,
    group: Sequence[int],
    rank: int,
    n: int,
    dtype: np.dtype,
    edges: Sequence[int] = (),
    sums: np.dtype | None = None,
) -> Traffic:
    """Returns what a rank sends when a collective runs on n elements over the ranks `group`;
    `edges` and `sums` as in Exchange.

    For rings there is a formula: in each pass a rank sends all chunks except one. It leaves out its
    own where partial sums are added up, its right neighbour's where complete sums are distributed.
    """
    p, r = len(group), group.index(rank)
    chunks, passes = algorithm.chunks(p), PASSES_OF_RINGS.get(algorithm)
    edge = edges.__getitem__ if edges else partial(chunk_start, n, chunks)
    itemsize = {True: (sums or dtype).itemsize, False: dtype.itemsize}
    if passes is not None:
        left_out = [(r if adds else r + 1) % p for adds in passes]
        pairs = zip(passes, left_out, strict=True)
        lengths = _lengths(n, chunks, edges)
        return sum(
            (_all_but(lengths, edge(c + 1) - edge(c), itemsize[adds]) for adds, c in pairs),
            Traffic(),
        )
    return sum(
        (
            _messages(_elements(message, edge), itemsize[bool(step.reduce)])
            for step in algorithm.steps(r, p)
            for message in step.sends(chunks)
        ),
        Traffic(),
    )


def _elements(message: Pieces, edge: Callable[[int], int]) -> int:
    """Returns the elements in a message; chunk c starts at index edge(c)."""
    return sum(edge(hi) - edge(lo) for lo, hi in message)


def _messages(n: int, itemsize: int) -> Traffic:
    """Returns the traffic of n elements in messages of at most MESSAGE bytes."""
    return Traffic(n * itemsize, -(-n // (MESSAGE // itemsize)))


def _lengths(n: int, chunks: int, edges: Sequence[int]) -> Mapping[int, int]:
    """Returns the number of chunks of each length: n elements cut at `edges`, or about equally."""
    if edges:
        return Counter(b - a for a, b in pairwise(edges))
    short, more = divmod(n, chunks)
    return {short: chunks - more, short + 1: more}


def _all_but(lengths: Mapping[int, int], left_out: int, itemsize: int) -> Traffic:
    """Returns the traffic of sending all chunks of a buffer except one, which has `left_out`
    elements; `lengths` maps a length to the number of chunks that have it."""
    return sum(
        (_messages(k, itemsize).times(count - (k == left_out)) for k, count in lengths.items()),
        Traffic(),
    )


def largest_receive(
    algorithm: Algorithm, group: Sequence[int], rank: int, n: int, edges: Sequence[int] = ()
) -> int:
    """Returns the most elements that a rank receives into temporary memory at once in a collective
    on n elements: terms that it then adds, and elements that cannot arrive in their final place."""
    p, r = len(group), group.index(rank)
    chunks = algorithm.chunks(p)
    if algorithm in PASSES_OF_RINGS:
        lengths = (k for k, count in _lengths(n, chunks, edges).items() if count)
        return max(lengths) if any(PASSES_OF_RINGS[algorithm]) else 0
    edge = edges.__getitem__ if edges else partial(chunk_start, n, chunks)

    def aside(steps: Sequence[Step]) -> int:
        messages = ((step, message) for step in steps for message in step.receives(chunks))
        return sum(_elements(m, edge) for step, m in messages if step.is_aside(m))

    return max(map(aside, in_rounds(algorithm.steps(r, p))), default=0)


def algorithm_of_sum(
    a: Arrangement, name: str, group: Sequence[int], rank: int
) -> tuple[Algorithm, Sequence[int]] | None:
    """Returns (the algorithm of the all-reduce `name` over `group`, the ranks that send in it).

    If ranks of a node sum in shared memory, only the first rank of each node sends. None: `rank`
    sends nothing, or MPI or another library sums, whose messages are unknown.
    """
    if len(group) == 1 or name == "mpi" or name in LIBRARY_SUMS.where:
        return None
    first = [*node_leaders(a, tuple(group)).values()]
    # within a node shared memory sends nothing; the leaders of nodes run a ring
    if name in ("shared", "hierarchical") and len(first) > 1:
        algorithm, group = RING, first
    elif name == "shared":
        return None
    else:
        algorithm = ALGORITHMS.get(name) or _proven(a, name, len(group))
    return (algorithm, group) if rank in group else None


@cached
def _proven(a: Arrangement, name: str, p: int) -> Algorithm:
    """Returns the user's algorithm, proved for p ranks once for an arrangement."""
    from nnmpi.collectives.verify import proven  # algorithms of nnmpi are proved in tests

    return proven(name, [p])


# ---- exchanges of an arrangement


def sent(a: Arrangement, exchange: Exchange, rank: int) -> Traffic:
    """Returns bytes and messages that a rank sends in a step for an exchange."""
    if len(exchange.group) == 1:
        return Traffic()
    return TRAFFIC_OF.get(exchange.operation, _by_algorithm)(a, exchange, rank).times(
        exchange.times
    )


def received(a: Arrangement, exchange: Exchange, rank: int) -> int:
    """Returns the temporary bytes that a rank needs in an exchange, for partial sums."""
    adds = True in exchange.operation.passes and len(exchange.group) > 1
    carrier = _carrier(a, exchange, rank) if adds else None
    numbers = largest_receive(*carrier, rank, exchange.elements, exchange.edges) if carrier else 0
    return numbers * (exchange.sums or exchange.dtype).itemsize


def _carrier(
    a: Arrangement, exchange: Exchange, rank: int
) -> tuple[Algorithm, Sequence[int]] | None:
    """Returns (algorithm, ranks that send) of a collective; None if `rank` sends nothing known."""
    if exchange.operation is Collective.ALL_REDUCE:
        return algorithm_of_sum(a, exchange.algorithm, exchange.group, rank)
    algorithm = exchange.operation.algorithms.get(exchange.algorithm)
    return (algorithm, exchange.group) if algorithm else None  # None: an algorithm of a library


def _by_algorithm(a: Arrangement, exchange: Exchange, rank: int) -> Traffic:
    carrier, n = _carrier(a, exchange, rank), exchange.elements
    if carrier is None:
        return Traffic()
    return algorithm_traffic(*carrier, rank, n, exchange.dtype, exchange.edges, exchange.sums)


def _to_each(a: Arrangement, exchange: Exchange, rank: int) -> Traffic:
    return Traffic(exchange.nbytes, len(exchange.group) - 1)


def _to_neighbours(a: Arrangement, exchange: Exchange, rank: int) -> Traffic:
    graph = GRAPHS[exchange.algorithm](len(exchange.group))
    return Traffic(exchange.nbytes, 1).times(len(graph.offsets))


TRAFFIC_OF: Mapping[Collective, Callable[[Arrangement, Exchange, int], Traffic]] = {
    Collective.MESSAGE: _to_each,
    Collective.NEIGHBOURS: _to_neighbours,
}
"""Traffic by kind of message; that of collectives follows from algorithms."""
