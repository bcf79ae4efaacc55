"""Computes what compressed sums of gradients exchange: the codec, also a user's, is called with
arrays without data, and its transfers are noted. The first transfer of a bucket begins in its SUM,
the others in its FINISH."""

from collections.abc import Iterator, Sequence
from itertools import accumulate, chain
from math import prod
from typing import NamedTuple, cast

from nnmpi.addons.compression import proof
from nnmpi.addons.compression.codecs import CodecInput, added_up
from nnmpi.addons.compression.compressed import as_matrix
from nnmpi.addons.compression.exchange import Phases
from nnmpi.arrays.backend import META, Array
from nnmpi.arrays.meta import NumbersReadError
from nnmpi.arrays.meta.log import logged_calls, touched_bytes
from nnmpi.arrays.native.table import Kernel
from nnmpi.collectives.algorithms import Collective
from nnmpi.options.quoting import quoted
from nnmpi.parallel.arrangement.arrangement import Arrangement
from nnmpi.parallel.arrangement.cached import cached
from nnmpi.parallel.arrangement.exchanges import AxisExchange, Exchange, new_exchange
from nnmpi.parallel.arrangement.rank_model import NOT_TIED, HeldVariable
from nnmpi.parallel.step_list.chain import buckets_of
from nnmpi.parallel.wire import Transfers, Wire
from nnmpi.schedules.op import Kind, Op


class NotingWire:
    """Notes the exchanges that a rank of `group` starts; each is complete at once."""

    def __init__(self, a: Arrangement, group: tuple[int, ...], rank: int) -> None:
        self._a, self._group, self.noted = a, group, list[Exchange]()
        self.size, self.rank = len(group), group.index(rank)

    def start(self, array: Array, algorithm: str = "auto") -> Transfers:
        return self._note(Collective.ALL_REDUCE, algorithm, self._group, array)

    def start_all_gather(
        self, array: Array, algorithm: str = "ring", parts: Sequence[int] | None = None
    ) -> Transfers:
        edges = () if parts is None else tuple(accumulate(parts, initial=0))
        return self._note(Collective.ALL_GATHER, algorithm, self._group, array, edges)

    def isend(self, array: Array, to: int, tag: int = 0) -> Transfers:
        # all pairs of ranks exchange messages at once: the first one is priced for all
        return self._note(Collective.MESSAGE, "", self._group[:2], array)

    def irecv(self, array: Array, source: int, tag: int = 0) -> Transfers:
        return Transfers()

    def _note(
        self,
        operation: Collective,
        algorithm: str,
        group: tuple[int, ...],
        array: Array,
        edges: tuple[int, ...] = (),
    ) -> Transfers:
        how = operation, algorithm, group, array.size, array.dtype, Kind.SUM
        self.noted.append(new_exchange(self._a, "gradients", *how, edges=edges))
        return Transfers()


class PackedSum(NamedTuple):
    """The sum of an array over ranks by packed messages: the exchanges that each phase starts, and
    the bytes that array functions read and write, without kernels."""

    phases: Sequence[Sequence[Exchange]]
    touched: int


def packed_sum(phases: Phases, wire: NotingWire) -> PackedSum:
    """Returns what phases on `wire` start, and the bytes they read and write."""
    of_phases = list[list[Exchange]]()
    with logged_calls() as calls:
        for _ in phases:
            of_phases.append(wire.noted)
            wire.noted = []
    touched = touched_bytes(call for call in calls if not isinstance(call.function, Kernel))
    return PackedSum(of_phases, touched)


def exchanges(a: Arrangement, rank: int, op: Op) -> Iterator[AxisExchange]:
    """Yields what a rank exchanges in SUM or FINISH of a bucket."""
    bucket = buckets_of(a, rank)[op.at]
    if bucket.tied != NOT_TIED:
        if op.kind is Kind.SUM:  # whole
            group, n = a.summed_over(rank, bucket), bucket.stop - bucket.start
            about = Collective.ALL_REDUCE, a.algorithm, group, n, a.dtype, op.kind
            yield "dp", new_exchange(a, "gradients", *about)
        return
    phases = _bucket_sum(a, rank, op.at).phases
    if op.kind is Kind.SUM:
        yield from (("dp", exchange) for exchange in chain(*phases[:1]))
    else:
        rest = chain(*phases[1:])
        yield from (("dp", exchange._replace(what="sums", during=op.kind)) for exchange in rest)


def bytes_copied(a: Arrangement, rank: int) -> float:
    """Returns the bytes read and written in a step to pack gradients."""
    buckets = enumerate(buckets_of(a, rank))
    return sum(_bucket_sum(a, rank, b).touched for b, one in buckets if one.tied == NOT_TIED)


@cached
def _members(a: Arrangement, rank: int) -> Sequence[Sequence[HeldVariable]]:
    return [*a.model_on(rank).inside().values()]


@cached
def _bucket_sum(a: Arrangement, rank: int, b: int) -> PackedSum:
    members = [held for held in _members(a, rank)[b] if held.size]
    if not members:
        return PackedSum((), 0)
    codec, number = proof.find(a.config.compress or "")
    sizes, wire = [held.size for held in members], NotingWire(a, a.replicas(rank), rank)
    row, factors = (META.xp.empty(sum(sizes), a.updated_dtype) for _ in range(2))
    bucket = CodecInput(
        row,
        [as_matrix(held.shape) for held in members],
        [held.padded_size for held in members],
        a.dtype,
        cast(Wire, wire),
        a.algorithm,
        factors if codec.has_factors else None,
    )
    gradients = [META.xp.empty(prod(held.shape), a.dtype) for held in members]
    try:
        done = packed_sum(added_up(codec, number, bucket, gradients), wire)
    except NumbersReadError as error:
        name = quoted(str(a.config.compress))
        raise proof.CodecError(f"compress {name} cannot be predicted: {error}") from error
    copied = row.nbytes * (1 + codec.has_factors)  # from the optimizer's state, and back
    return done._replace(touched=done.touched + 4 * copied)
