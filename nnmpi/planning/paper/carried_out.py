"""Carries out the step of a rank on arrays without data, and logs what it sends: for strategies and
stores of add-ons, whose sums `parallel/facts/exchanges.py` does not know, such as compressed sums,
averages of replicas, servers and --reproducible. Its stages compute nothing: what passes exchange,
and what stages send, is walked for all strategies.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import NamedTuple

import numpy as np

from nnmpi.arrays.meta.log import logged_calls, touched_bytes
from nnmpi.arrays.native.table import Kernel
from nnmpi.data.loader import Batch, StepBatch
from nnmpi.parallel.arrangement.arrangement import Arrangement
from nnmpi.parallel.arrangement.exchanges import AxisExchange, Exchange
from nnmpi.parallel.arrangement.micro_batches import micro_batches
from nnmpi.parallel.step.executor import StepState
from nnmpi.planning.paper.built import PaperRank, built
from nnmpi.schedules.op import PASSES, SENDS, Kind


def is_walked(a: Arrangement) -> bool:
    """True if all exchanges of the arrangement's ranks are known from their lists alone."""
    return not a.strategy.averages


class Carried(NamedTuple):
    """The exchanges of a step that was carried out, beside those that are walked.

    rank          the rank, after some steps
    entries       how often each exchange was made
    by_op         a dict: (kind of operation, bucket) -> the exchanges that such an operation starts
    bytes_copied  bytes that array functions read and write to pack and unpack messages
    """

    rank: PaperRank
    entries: Mapping[AxisExchange, int]
    by_op: Mapping[tuple[Kind, int], Sequence[Exchange]]
    bytes_copied: float


def carried_out(a: Arrangement, rank: int, batch: int) -> Carried:
    """Carries out the step of a rank over `batch` samples; returns what it sends beside what is
    walked."""
    paper_rank, sizes = built(a, rank), micro_batches(a, rank, batch)
    micro = [Batch(np.empty((n, 0)), np.zeros(n), np.arange(n)) for n in sizes]
    load = StepBatch(np.broadcast_to(0, batch), micro, float(batch))
    # only the last step is logged. Before it PipeDream needs one per stage, until its pipeline is
    # full and all weight versions exist
    steps = 1 if a.steps_together else 1 + len(a.stages)
    averages = a.strategy.averages
    batches = 1 if averages else 1 << 30  # a round ends with an epoch
    log = paper_rank.state.log
    for number in range(steps):
        log.clear()
        paper_rank.run(load, StepState(number, 0, number), batches)
        paper_rank.store.wait()
    made, touched = _beside_walk(a, rank, log.entries), 0.0
    by_op = {at: [*exchanges] for at, exchanges in log.by_op.items()}
    if averages:
        touched = _touched_by_replica(a, partial(paper_rank.run, load))
    return Carried(paper_rank, made, by_op, touched)


def is_walked_in(a: Arrangement, axis: str, exchange: Exchange) -> bool:
    """True if an exchange of this arrangement is walked: one within passes, or between stages."""
    return is_walked(a) or exchange.during in PASSES or exchange.during in SENDS


def _beside_walk(
    a: Arrangement, rank: int, entries: Mapping[AxisExchange, int]
) -> Mapping[AxisExchange, int]:
    """Returns those of the logged exchanges that are not walked."""
    averages, others, made = a.strategy.averages, a.mesh.group(rank, "dp"), Counter[AxisExchange]()
    for (axis, exchange), times in entries.items():
        if is_walked_in(a, axis, exchange):
            continue
        e = exchange._replace(times=times)
        e = averages.priced(a, e, others) if averages and axis == "dp" else e
        made[axis, e._replace(times=1)] += e.times
    return made


def _touched(run: Callable[[StepState, int], object], state: StepState, batches: int) -> int:
    """Carries out `batches` steps by `run(state, batches)`; returns the bytes that array functions
    read and write in them to pack and unpack messages. Kernels of the passes and of the update do
    not count."""
    with logged_calls() as calls:
        run(state, batches)
    return touched_bytes(call for call in calls if not isinstance(call.function, Kernel))


def _touched_by_replica(a: Arrangement, run: Callable[[StepState, int], object]) -> float:
    """For replicas that train alone for a round of some steps and are then averaged: returns the
    bytes that array functions of a replica read and write per step on average. They are computed
    from rounds of one step and of two; `run(state, n)` carries out n steps."""
    every = a.strategy.result_steps(a.config)
    of_rounds = [_touched(run, StepState(), steps) for steps in (1, 2)[:every]]
    of_step = of_rounds[-1] - of_rounds[0]
    return of_step + (of_rounds[0] - of_step) / every
