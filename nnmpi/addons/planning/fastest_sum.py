"""Chooses the all-reduce predicted to be fastest for a model's gradients."""

from dataclasses import replace
from itertools import chain

from nnmpi.addons.planning.exchange_time import ExchangeTimes
from nnmpi.addons.planning.paper.rank import exchanges
from nnmpi.collectives.algorithms import Collective
from nnmpi.parallel.arrangement.arrangement import Arrangement
from nnmpi.parallel.arrangement.cluster import LIBRARY_SUMS
from nnmpi.parallel.arrangement.exchanges import Exchange
from nnmpi.parallel.arrangement.store_kinds import asked_kind
from nnmpi.schedules.op import Kind

ALL_REDUCES = ("halving", "doubling", "tree", "ring")
"""The all-reduces to choose from. ps and p2p are never faster, since they send as many bytes or
more; no plan has been measured for bruck and pat, which use several ports. Those through shared
memory or libraries are used only if `auto` takes them."""


def with_fastest_sum(a: Arrangement, times: ExchangeTimes) -> Arrangement:
    """Replaces the all-reduce, if --allreduce is `auto`, by the fastest one over messages."""
    of_library = LIBRARY_SUMS.row(a.algorithm)
    if a.config.allreduce != "auto" or a.algorithm == "shared" or of_library or a.tied:
        return a
    ranks = a.mesh.group(a.mesh.size - 1, "pp")
    sums = [
        Exchange(
            *("gradients", Collective.ALL_REDUCE, a.algorithm, a.summed_over(rank, bucket)),
            *(bucket.stop - bucket.start, a.dtype, Kind.SUM),
            sums=a.sums_dtype,
        )
        for rank in ranks
        for bucket in (() if a.store.zero else a.model_on(rank).buckets)
    ]
    packs = asked_kind(a.config).packs
    if packs:
        sums = []
    if a.strategy.averages or packs:
        logged = [exchanges(a, rank, a.config.batch_size).get("dp", ()) for rank in ranks]
        whole = (e for e in chain.from_iterable(logged) if e.operation is Collective.ALL_REDUCE)
        sums += [e for e in whole if e.algorithm == a.algorithm]
    seconds = {
        name: times.total(exchange._replace(algorithm=name) for exchange in sums)
        for name in dict.fromkeys((a.algorithm, *ALL_REDUCES))
    }
    name = min(seconds, key=seconds.__getitem__)
    if name == a.algorithm:
        return a
    return replace(a, algorithm=name, config=replace(a.config, allreduce=name))
