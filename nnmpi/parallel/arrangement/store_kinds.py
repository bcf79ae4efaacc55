"""STORE_KINDS: what each kind of store decides, and sends for the trained parameters.

What they hold is asked of the stores themselves (`parallel/paper/memory.py`). Whoever changes what
one of them sends changes its row; `tests/parallel/arrangement/test_arranged.py` compares the two.
"""

from collections.abc import Iterator
from functools import partial

from nnmpi.collectives.algorithms import REDUCE_SCATTERS
from nnmpi.collectives.collective import Collective
from nnmpi.collectives.step import bounds, chunk_start
from nnmpi.config import Config
from nnmpi.parallel.arrangement.arrangement import Arrangement, StoreKind, users_of
from nnmpi.parallel.arrangement.exchanges import FLOAT64, Exchange, agreed
from nnmpi.parallel.arrangement.flat_buffer import Stretch, scalar_count
from nnmpi.parallel.arrangement.program import gathered
from nnmpi.parallel.arrangement.rank_model import NOT_TIED
from nnmpi.parallel.arrangement.traffic import moments
from nnmpi.schedules.op import Kind
from nnmpi.schedules.reduction_tree import Action, moves, owners_of


def asked_kind(config: Config) -> StoreKind:
    """The kind that --zero asks for, where several ranks have the same parameters."""
    return next(kind for kind in STORE_KINDS.values() if kind.zero == config.zero)


def _slice_of_server(a: Arrangement, rank: int) -> Iterator[Stretch]:
    """What a server updates; a worker has none, only copies of what was."""
    n, k = a.model_on(rank).length, rank - a.mesh.size
    if k >= 0:
        yield chunk_start(n, a.servers, k), chunk_start(n, a.servers, k + 1)


# ---- what they send


def _summed(
    a: Arrangement,
    group: tuple[int, ...],
    n: int,
    during: Kind = Kind.REDUCE,
    operation: Collective = Collective.ALL_REDUCE,
) -> Exchange:
    one = Exchange("gradients", operation, a.algorithm, group, n, a.dtype, during)
    return one._replace(sums=a.sums_dtype)


def _sums(a: Arrangement, rank: int, micro: int) -> Iterator[Exchange]:
    """An all-reduce a bucket; scalars are apart from gradients of 16 bits."""
    held = a.model_on(rank)
    if a.is_mixed:
        yield agreed(a.replicas(rank), scalar_count(held.trained), "scalars")
    for bucket in held.buckets:
        yield _summed(a, a.summed_over(rank, bucket), bucket.stop - bucket.start)


def _sums_on_node(a: Arrangement, rank: int, micro: int) -> Iterator[Exchange]:
    """The same, and the squares, of which each rank has those of its slices."""
    yield agreed(a.replicas(rank), 1, "squares")
    yield from _sums(a, rank, micro)


def _scattered_sums(a: Arrangement, rank: int, micro: int) -> Iterator[Exchange]:
    """Gradients, in stages 2 and 3 of ZeRO after each backward pass of each stage."""
    held, group, scatters = a.model_on(rank), a.replicas(rank), a.store.scatters
    inside = held.inside()
    yield agreed(group, scalar_count(held.trained) + 3, "scalars, squares, orders")
    for bucket in held.buckets:
        n, ranks = bucket.stop - bucket.start, a.summed_over(rank, bucket)
        halves = ranks == group and a.algorithm in REDUCE_SCATTERS
        operation = Collective.REDUCE_SCATTER if halves else Collective.ALL_REDUCE
        one = _summed(a, ranks, n, Kind.B if scatters else Kind.REDUCE, operation)
        users = users_of(inside[bucket])
        yield one._replace(times=micro * len(users)) if scatters else one
        if scatters and bucket.tied != NOT_TIED:
            edges, r = bounds(n, len(group)), group.index(rank)
            own, stages = edges[r + 1] - edges[r], a.across_stages(rank, bucket, "pp")
            yield _summed(a, stages, own, Kind.UPDATE)._replace(dtype=a.updated_dtype)


def _gathers_once(a: Arrangement, rank: int, micro: int) -> Iterator[Exchange]:
    """Each bucket, after the update."""
    for bucket in sorted(a.model_on(rank).buckets):
        n, ranks = bucket.stop - bucket.start, a.summed_over(rank, bucket)
        yield Exchange("parameters", Collective.ALL_GATHER, "ring", ranks, n, a.dtype, Kind.UPDATE)


def _gathers_at_use(a: Arrangement, rank: int, micro: int) -> Iterator[Exchange]:
    """Each bucket, whenever a layer uses it and it is in no slot."""
    uses = gathered(a, rank, micro)
    for k, one in enumerate(_gathers_once(a, rank, micro)):
        yield one._replace(during=Kind.F, times=uses[k])


def _along_the_tree(a: Arrangement, rank: int, micro: int) -> Iterator[Exchange]:
    """Gradients of slices, each with a row of moments; the first rank broadcasts the sum."""
    group = a.replicas(rank)
    plan = moves(owners_of(a.config.slices, len(group)), rank)
    sends = sum(move.action is Action.SEND for move in plan)
    rows = sum(row for *_, row in moments(a, rank))
    for n, dtype in ((a.model_on(rank).length, a.dtype), (rows, FLOAT64)):
        up = Exchange("slices", Collective.MESSAGE, "", group[:2], n, dtype, Kind.REDUCE)
        yield up._replace(times=sends)
        yield Exchange("slices", Collective.BROADCAST, "tree", group, n, dtype, Kind.UPDATE)


# ---- the rows

_zero = partial(
    StoreKind,
    sends=_scattered_sums,
    updaters=Arrangement.summed_over,
    own=Arrangement.owned_ranges,
    divides=True,
    scalars=False,
    is_whole=False,
)
_of_strategy = partial(StoreKind, buckets=False)

STORE_KINDS: dict[str, StoreKind] = {
    kind.name: kind
    for kind in (
        StoreKind("replica", _sums, has_pages=True),
        StoreKind("local", has_pages=True),
        StoreKind("node", _sums_on_node, updaters=lambda a, rank, _: a.near_replicas(rank)),
        _zero("zero 1", gathers=_gathers_once, zero=1, copies=True),
        _zero("zero 2", gathers=_gathers_once, zero=2, scatters=True, copies=True),
        _zero("zero 3", gathers=_gathers_at_use, zero=3, scatters=True),
        _of_strategy("versions", strategy="pipedream", scalars=False),
        _of_strategy("slices", _along_the_tree, strategy="reproducible"),
        _of_strategy(
            "served",
            strategy="server",
            own=_slice_of_server,
            divides=True,
            scalars=False,
            is_whole=False,
        ),
    )
}
"""By name."""
