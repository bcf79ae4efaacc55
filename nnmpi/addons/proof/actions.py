"""Actions: what one rank does in a step, as far as the proof has to know it: its operations, the
exchanges that each of them makes, and what lies in its memory."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property
from typing import NamedTuple, TypeAlias

from nnmpi.parallel.arrangement.arrangement import Arrangement, counting_flags
from nnmpi.parallel.arrangement.exchanges import Exchange
from nnmpi.parallel.arrangement.micro_batches import micro_batches
from nnmpi.parallel.arrangement.rank_model import NOT_TIED
from nnmpi.parallel.facts.exchanges import PassExchanges, counted, exchanges, exchanges_of
from nnmpi.parallel.facts.passes import PassExchange
from nnmpi.parallel.layout import counts_loss
from nnmpi.parallel.step_list.chain import stage_units
from nnmpi.schedules.op import PASSES, Kind, Op


class Bucket(NamedTuple):
    """Gradients that one exchange sums: its length in elements, and the variables in it."""

    length: int
    variables: frozenset[int]


class Actions:
    """The operations of a rank, and facts about them.

    at          its coordinates
    trained     the numbers of its parameters; `elements`: of each, how many elements it has here
    units       by stage: the numbers of its units
    finals      by unit: the parameters whose gradients its backward pass is the last to add to
    sizes       the samples of each of its micro-batches
    has_halves  whether backward passes run in two halves
    ties        what each exchange of TIES sums: this rank's part of a bucket
    terms       what TERMS sums: its parts of all parameters of whose gradients ranks have terms
    counts      by parameter: whether this rank counts it in the norm of all gradients
    """

    def __init__(self, a: Arrangement, rank: int, ops: Sequence[Op], passes: PassExchanges) -> None:
        self.rank, self.ops, self._a = rank, ops, a
        self.at = a.mesh.coordinates(rank)
        held = a.model_on(rank)
        self.trained = [v.variable for v in held.trained]
        self.elements = {v.variable: v.size for v in held.trained}
        units = stage_units(a, rank, self.trained)  # type: ignore[arg-type]
        self.units = {stage: of.numbers for stage, of in units.items()}
        self.finals: Mapping[int, frozenset[int]] = {
            u: frozenset(final)  # type: ignore[arg-type]
            for of in units.values()
            for u, final in zip(of.numbers, of.parameters, strict=True)
        }
        self.has_halves = any(op.kind is Kind.I for op in ops)
        self.sizes = micro_batches(a, rank, a.config.batch_size)
        self.buckets = [
            Bucket(bucket.stop - bucket.start, frozenset(v.variable for v in inside))
            for bucket, inside in held.inside().items()
        ]
        self.ties = [
            Bucket(stop - start, of.variables)
            for of, slice_, (start, stop) in zip(
                self.buckets, held.buckets, a.owned_ranges(rank), strict=False
            )
            if slice_.tied != NOT_TIED
        ]
        terms = a.sharding.partial_gradients & {*self.trained}
        self.terms = Bucket(sum(self.updated[v] for v in terms), terms)
        self.counts = dict(zip(self.trained, counting_flags(a, rank), strict=True))
        self.counts_loss = counts_loss(self.at)
        self.sums_scalars = bool(held.scalars) and a.store.scalars
        self._passes = passes

    @cached_property
    def updates(self) -> Mapping[int, Sequence[tuple[int, int]]]:
        """By variable: the slices (start, stop) of its elements that this rank updates."""
        held = self._a.model_on(self.rank)
        ranges = [*self._a.owned_ranges(self.rank)] if held.buckets else [(0, held.length)]
        return {
            v.variable: [
                (max(lo - at, 0), min(hi - at, v.size))
                for lo, hi in ranges
                if max(lo, at) < min(hi, at + v.size)
            ]
            for v, (at, _) in zip(held.trained, held.spans, strict=True)
        }

    @cached_property
    def updated(self) -> Mapping[int, int]:
        """By variable: how many of its elements this rank updates."""
        return {v: sum(hi - lo for lo, hi in slices) for v, slices in self.updates.items()}

    def values_from(self) -> Iterable[tuple[Bucket, tuple[int, ...]]]:
        """Yields each bucket, and the ranks whose updated values this rank has after gathers."""
        gathers = (op for op in self.ops if op.kind is Kind.GATHER)
        groups = {op.at: exchange.group for op in gathers for exchange in self.exchanges(op)}
        is_window = self._a.store.name == "node"  # ranks of a node have the same memory
        others = self._a.near_replicas(self.rank) if is_window else (self.rank,)
        return ((bucket, groups.get(b, others)) for b, bucket in enumerate(self.buckets))

    def exchanges(self, op: Op) -> Sequence[Exchange]:
        """Returns the exchanges of an operation on a bucket or at the end of the step."""
        return [exchange for _, exchange in exchanges_of(self._a, self.rank, op)]

    def in_passes(self) -> Iterable[tuple[str, Exchange, int]]:
        """Yields (axis, exchange, how often) of the exchanges within passes."""
        passes = counted((op for op in self.ops if op.kind in PASSES), self.sizes)
        made = exchanges(self._a, self.rank, passes, self._passes)
        return ((axis, exchange, times) for (axis, exchange), times in made.items())

    def axes_of(self, exchange: Exchange) -> frozenset[str]:
        """Returns the axes along which the ranks of an exchange differ."""
        places = [self._a.mesh.coordinates(rank) for rank in exchange.group]
        return frozenset(axis for axis in self.at if len({at[axis] for at in places}) > 1)


PassesOf: TypeAlias = Callable[[int, int, int], Mapping[Kind, Mapping[PassExchange, int]]]
"""(rank, stage, samples): how often each kind of a stage's passes makes each exchange."""
