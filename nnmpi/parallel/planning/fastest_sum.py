"""The all-reduce by which the gradients of an arrangement are summed in the least time."""

from dataclasses import replace

from nnmpi.collectives.step import Collective
from nnmpi.parallel.arrangement.arrangement import Arrangement
from nnmpi.parallel.arrangement.exchanges import Exchange
from nnmpi.parallel.planning.exchange_time import ExchangeTimes
from nnmpi.schedules.op import Kind

ALL_REDUCES = ("halving", "doubling", "tree", "ring")
"""Of the others, ps and p2p are never faster: they send as many bytes in as many messages or more.
Those by nodes, and NCCL's, are taken where `auto` takes them."""


def with_fastest_sum(a: Arrangement, times: ExchangeTimes) -> Arrangement:
    """The arrangement with that all-reduce; as it is where sums are no all-reduces by messages, or
    nothing else is faster."""
    if a.config.allreduce != "auto" or a.algorithm in ("shared", "nccl") or a.tied:
        return a
    ranks = a.mesh.group(a.mesh.size - 1, "pp")
    sums = [
        Exchange(
            *("gradients", Collective.ALL_REDUCE, a.algorithm, a.summed_over(rank, bucket)),
            *(bucket.stop - bucket.start, a.dtype, Kind.REDUCE),
            sums=a.sums_dtype,
        )
        for rank in ranks
        for bucket in (() if a.store.zero else a.model_on(rank).buckets)
    ]
    seconds = {
        name: times.total(one._replace(algorithm=name) for one in sums)
        for name in dict.fromkeys((a.algorithm, *ALL_REDUCES))
    }
    name = min(seconds, key=seconds.__getitem__)
    if name == a.algorithm:
        return a
    return replace(a, algorithm=name, config=replace(a.config, allreduce=name))
