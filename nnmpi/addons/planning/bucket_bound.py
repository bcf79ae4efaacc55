"""Lower bounds on a step with ZeRO 2 or 3 on several nodes, from reduce-scatters and gathers of
buckets, as far as computing does not hide them."""

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

from nnmpi.addons.planning.arranger import Arranger
from nnmpi.addons.planning.candidate import Candidate
from nnmpi.addons.planning.exchange_time import ExchangeTimes
from nnmpi.collectives.algorithms import Collective
from nnmpi.parallel.arrangement.arrange import strategy_of
from nnmpi.parallel.arrangement.arrangement import Arrangement
from nnmpi.parallel.arrangement.exchanges import Exchange
from nnmpi.parallel.arrangement.store_kinds import asked_kind
from nnmpi.parallel.step_list.chain import chain_of
from nnmpi.parallel.step_list.values import value_slots
from nnmpi.schedules.op import Kind


class BucketBounds:
    """Computes lower bounds on exchanges that ZeRO 2 and 3 cannot hide behind passes."""

    def __init__(self, arranger: Arranger, times: ExchangeTimes) -> None:
        self._arranger, self._times = arranger, times
        self._once = dict[tuple[Any, ...], list[list[Exchange]]]()

    def exposed(self, candidate: Candidate, count: int, busy: Sequence[float]) -> list[float]:
        """A lower bound on the seconds that each rank along pp spends in reduce-scatters and
        all-gathers that its passes do not hide, in a step of `count` micro-batches whose passes
        take `busy` seconds per rank; 0 where no formula gives the exchanges."""
        key = candidate._replace(schedule=str(candidate.schedule == "interleaved"), micro_batches=1)
        if key not in self._once:
            self._once[key] = self._of_micro_batch(candidate)
        # with several stages a rank, what begins and ends its list is not known
        is_in_order = candidate.zero < 3 or candidate.schedule != "interleaved"
        exposed = list[float]()
        for of_micro_batch, seconds in zip(self._once[key], busy, strict=True):
            logged = [e._replace(times=count * e.times) for e in of_micro_batch]
            alone = self._alone(of_micro_batch) if is_in_order else 0.0
            exposed.append(max(self._times.total(logged) - seconds, alone))
        return exposed

    def _alone(self, of_micro_batch: Sequence[Exchange]) -> float:
        """The seconds of those that no pass can hide: the last reduce-scatter and, with ZeRO 3, the
        first gather."""
        least = dict[Collective, float]()
        for e in of_micro_batch:
            seconds = self._times.seconds(e._replace(times=1))
            least[e.operation] = min(least.get(e.operation, seconds), seconds)
        return sum(least.values())

    def _of_micro_batch(self, candidate: Candidate) -> list[list[Exchange]]:
        """Returns, for each rank along pp, a list of the reduce-scatters and gathers that it makes
        in one micro-batch. All lists are empty if the layout is impossible, or if these exchanges
        are not known without simulating a step: replicas average their parameters, gradients are
        compressed, or the strategy has lists of its own."""
        plain, nothing = self._arranger.plain, [list[Exchange]()] * candidate.pp
        kind = strategy_of(plain)
        if kind.averages or kind.lists or asked_kind(plain).packs:
            return nothing
        try:
            a = self._arranger.arranged(candidate)
        except ValueError:  # which the search notes when it arranges the layout
            return nothing
        ranks = a.mesh.group(a.mesh.size - 1, "pp")
        return [[*_exchanges(a, rank, self._times)] for rank in ranks]


def _exchanges(a: Arrangement, rank: int, times: ExchangeTimes) -> Iterator[Exchange]:
    """Yields a rank's reduce-scatters in a micro-batch and, with ZeRO 3, its gathers of parameters;
    those of equal length are one Exchange."""
    buckets = a.model_on(rank).buckets
    groups = {a.summed_over(rank, bucket) for bucket in buckets}
    if len(groups) != 1 or times.links(group := groups.pop()).node_count == 1:
        return
    lengths = [bucket.stop - bucket.start for bucket in buckets]
    of_bucket = Exchange(
        *("gradients", Collective.REDUCE_SCATTER, a.algorithm, group, 0, a.dtype, Kind.SUM),
        sums=a.sums_dtype,
    )
    for numbers, scatters in Counter(lengths).items():
        yield of_bucket._replace(elements=numbers, times=scatters)
    if a.store.zero < 3 or a.graph.may_differ:
        return
    chain = chain_of(a, rank)
    slots, of = value_slots(a, chain), chain.lengths
    gathers = Counter[int]()
    for units in chain.of_stage.values():
        used = sorted({b for u in units for b in chain.units[u].buckets})
        for order in (used, used[::-1]):
            # when a pass begins a slot has one bucket, at best its first: the others are gathered
            kept = {slots[b]: b for b in reversed(order)}
            gathers.update(of[b] for b in order if kept[slots[b]] != b)
    of_bucket = of_bucket._replace(operation=Collective.ALL_GATHER, sums=None)
    for numbers, passes in gathers.items():
        yield of_bucket._replace(elements=numbers, times=passes)
