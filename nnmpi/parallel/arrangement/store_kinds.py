"""STORE_KINDS: what each kind of store holds of the trained parameters, and sends for them.

P   numbers of the trained parameters that are here       s   bytes of a number
L   length of the flat buffer, with scalars and padding    k   running sums of the optimizer
d   ranks along dp and cp

                 parameters        gradients            optimizer       slots       windows
local, replica   P s               P s                  k (L - scalars) s           sums
node             P s, first rank   P s, twice on the    k L s / d                   sums, and
                 of a node         first rank                                       parameters
zero 1           L s               L s                  k L s / d                   sums
zero 2           L s               L s / d              k L s / d       gradients
zero 3           L s / d           L s / d              k L s / d       both
versions         P s               P s                  k L s           older versions
slices           P s               P s a buffer         k (L - scalars) s
served           P s               P s, or a part       k of a part

Where others go on if a rank is lost, `node` has the sums of all its ranks in windows, and behind
them a chunk of 0.5 MB of values and of each sum for each rank, and what was decided.

In 16 bits s is 2, running sums, buffers and gradients that zero 2 and 3 keep have 4 bytes, and the
optimizer has a master of 4 besides; zero 3 has masters alone. Gradients are read through a slot.

The stores themselves are in `parallel/`: whoever changes what one of them holds or sends changes
its row, and `tests/parallel/arrangement/test_arranged.py` compares the two.
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
from nnmpi.parallel.arrangement.memory import noted, running_sums, sum_windows, window
from nnmpi.parallel.arrangement.program import SLOTS, gathered
from nnmpi.parallel.arrangement.rank_model import NOT_TIED, Memory
from nnmpi.parallel.arrangement.traffic import moments
from nnmpi.schedules.op import Kind
from nnmpi.schedules.reduction_tree import Action, highest, moves, owners_of


def asked_kind(config: Config) -> StoreKind:
    """The kind that --zero asks for, where several ranks have the same parameters."""
    return next(kind for kind in STORE_KINDS.values() if kind.zero == config.zero)


# ---- what they hold


def _numbers(a: Arrangement, rank: int) -> int:
    """The length of the flat buffer without scalars."""
    held = a.model_on(rank)
    return held.length - held.spans[0][0] if held.trained else 0


def _copy(a: Arrangement, rank: int) -> Memory:
    """All values, gradients and running sums; memory through which a node sums buckets."""
    n = _numbers(a, rank)
    whole = sum(one.size for one in a.model_on(rank).trained) * a.dtype.itemsize
    sums, windows = running_sums(a, n), _windows(a, rank)
    return Memory(whole, whole, sums, slots=_terms_of_nccl(a, rank), windows=windows)


def _terms_of_nccl(a: Arrangement, rank: int) -> int:
    """The copy of the longest bucket of 16 bits in the type of its sum; others take its memory."""
    is_copied = a.algorithm == "nccl" and a.is_mixed and a.sums_dtype is not None
    return max(_lengths(a, rank), default=0) * a.updated_dtype.itemsize * is_copied


def _windows(a: Arrangement, rank: int) -> int:
    """The windows through which the buckets of a rank are summed."""
    buckets = a.model_on(rank).buckets
    sums = ((a.summed_over(rank, one), one.stop - one.start, a.dtype) for one in buckets)
    return sum_windows(a, rank, a.algorithm, sums)


def _on_node(a: Arrangement, rank: int) -> Memory:
    """Each rank updates its slice of each bucket; the node's first rank has what all share."""
    held, s, whole = a.model_on(rank), a.dtype.itemsize, _copy(a, rank).parameters
    is_first = a.near_replicas(rank)[0] == rank
    (first, _), (_, n) = held.spans[0], held.spans[-1]
    own = sum(max(hi - max(lo, first), 0) for lo, hi in a.owned_ranges(rank))
    windows = window(n, a.dtype, is_first) + n * s * is_first
    parameters, gradients = whole * is_first, whole * (1 + is_first)
    rest = windows - parameters - gradients
    if a.cluster.survives and is_first:  # sums have room for scalars, too
        near = a.near_replicas(rank)
        rest += len(near) * noted(a.config, len(held.trained), a.updated_dtype)
        rest += running_sums(a, first)
    return Memory(parameters, gradients, running_sums(a, own), windows=rest)


def _sharded_state(a: Arrangement, rank: int) -> Memory:
    """Running sums of this rank's shards."""
    flat, own = a.model_on(rank).length * a.dtype.itemsize, _shards(a, rank)
    sums, windows = running_sums(a, own), _windows(a, rank)
    return Memory(flat, flat, sums, slots=_terms_of_nccl(a, rank), windows=windows)


def _sharded_gradients(a: Arrangement, rank: int) -> Memory:
    """Gradients of them, too, and slots for those that are not scattered yet."""
    kept = _shards(a, rank) * a.updated_dtype.itemsize
    slots = SLOTS * max(_lengths(a, rank)) * a.dtype.itemsize
    there = _sharded_state(a, rank)
    return there._replace(gradients=kept, slots=there.slots + slots)


def _sharded_parameters(a: Arrangement, rank: int) -> Memory:
    """Values of them, too, and slots for those that layers use."""
    there, lengths = _sharded_gradients(a, rank), _lengths(a, rank)
    longest = (max(lengths[i::SLOTS]) for i in range(min(SLOTS, len(lengths))))
    slots = there.slots + sum(longest) * a.dtype.itemsize
    return there._replace(parameters=0 if a.is_mixed else there.gradients, slots=slots)


def _shards(a: Arrangement, rank: int) -> int:
    return sum(stop - start for start, stop in a.owned_ranges(rank))


def _lengths(a: Arrangement, rank: int) -> list[int]:
    """The lengths of the buckets, in the order of memory."""
    return [one.stop - one.start for one in sorted(a.model_on(rank).buckets)]


def _versions(a: Arrangement, rank: int) -> Memory:
    """Stage s of p has values for each micro-batch in flight, which are p - s."""
    older = a.mesh.axes["pp"] - a.mesh.coordinates(rank)["pp"] - 1
    there = _copy(a, rank)
    return there._replace(slots=there.slots + older * _numbers(a, rank) * a.dtype.itemsize)


def _slices(a: Arrangement, rank: int) -> Memory:
    """A buffer of gradients for each partial sum that waits for another one."""
    buffers = highest(moves(owners_of(a.config.slices, a.mesh.size), rank))
    there = _copy(a, rank)
    return there._replace(gradients=there.gradients * buffers)


def _served(a: Arrangement, rank: int) -> Memory:
    """A worker has no running sums; a server has those of its part of the gradients."""
    whole = _copy(a, rank).parameters
    if rank < a.mesh.size:
        return Memory(whole, whole, 0)
    own = sum(stop - start for start, stop in _slice_of_server(a, rank))
    return Memory(whole, own * a.dtype.itemsize, running_sums(a, own))


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
        StoreKind("replica", _copy, _sums, has_pages=True),
        StoreKind("local", _copy, has_pages=True),
        StoreKind(
            "node", _on_node, _sums_on_node, updaters=lambda a, rank, _: a.near_replicas(rank)
        ),
        _zero("zero 1", _sharded_state, gathers=_gathers_once, zero=1, copies=True),
        _zero(
            "zero 2", _sharded_gradients, gathers=_gathers_once, zero=2, scatters=True, copies=True
        ),
        _zero("zero 3", _sharded_parameters, gathers=_gathers_at_use, zero=3, scatters=True),
        _of_strategy("versions", _versions, strategy="pipedream", scalars=False),
        _of_strategy("slices", _slices, _along_the_tree, strategy="reproducible"),
        _of_strategy(
            "served",
            _served,
            strategy="server",
            own=_slice_of_server,
            divides=True,
            scalars=False,
            is_whole=False,
        ),
    )
}
"""By name."""
