"""The seconds that a rank waits for sums of gradients and gathers of values, by its list.

Messages of other stages arrive at once: pipelines have a clock of their own.
"""

from collections.abc import Sequence
from typing import NamedTuple

from nnmpi.parallel.arrangement.arrangement import Arrangement
from nnmpi.parallel.arrangement.cached import cached
from nnmpi.parallel.arrangement.program import micro_batches
from nnmpi.parallel.step_list.chain import gathers_for_use
from nnmpi.parallel.step_list.op import PASSES, Kind, Op
from nnmpi.parallel.step_list.step import step_list
from nnmpi.planning.list_times import Arrivals, ListTimes
from nnmpi.planning.paper.rank import few_micro_batches
from nnmpi.sim.clock import timed


class Waits(NamedTuple):
    """The seconds of sums and gathers that passes do not hide: before the update, and of values
    that are gathered behind it."""

    sums: float = 0.0
    update: float = 0.0


def waits(times: ListTimes) -> Waits:
    """The waits of a rank in a step over a batch of the config."""
    a = times.a
    sizes = micro_batches(a, times.rank, a.config.batch_size)
    few, period = few_micro_batches(a, sizes)
    if few + period >= len(sizes):
        return _of_list(times, len(sizes))
    first, second = (_of_list(times, n) for n in (few, few + period))
    periods = (len(sizes) - few) // period
    return Waits(*(x + periods * (y - x) for x, y in zip(first, second, strict=True)))


def _of_list(times: ListTimes, micro: int) -> Waits:
    """The waits in a step of so many micro-batches, up to the sums that follow it."""
    timing, ops = times.timing(Arrivals(dict)), _until_summed(times.a, times.rank, micro)
    computing = clock = gathered = 0.0
    for _, op, _, ended in timed([ops], lambda _, op: timing(op)):
        of_op = timing(op)
        if of_op.lane is None:
            computing += of_op.seconds * (op.kind in PASSES)
            gathered += (ended - clock) * (op.kind in (Kind.GATHER, Kind.WAIT))
            clock = ended
    behind = 0.0 if gathers_for_use(times.a) else gathered
    return Waits(max(clock - computing - behind, 0.0), behind)


@cached
def _until_summed(a: Arrangement, rank: int, micro: int) -> Sequence[Op]:
    """The list of a rank, from the gathers behind the update before to the last sum over
    replicas."""
    step = step_list(a, rank, micro)
    end = step.ops.index(Op((*step.totals, Kind.AGREE)[0]))
    return [*(Op(Kind.GATHER, b) for b in step.begins), *step.ops[:end]]
