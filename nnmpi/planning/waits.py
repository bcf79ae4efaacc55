"""The seconds that a rank waits for sums of gradients and gathers of values: its list on a clock.

    rank    F0 F1 B1     B0     FINISH1 FINISH0
    link             SUM1 ──── SUM0 ────

Between nodes they go on while the rank computes, unless exchanges within passes need the same link.
On a node ranks move bytes themselves, so a rank makes its exchanges one by one, unless its machine
hides them. Messages of other stages arrive at once: pipelines have a clock of their own.
"""

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Mapping, Sequence
from functools import cache, partial
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from nnmpi.parallel.arrangement.arrangement import Arrangement
from nnmpi.parallel.arrangement.cached import cached
from nnmpi.parallel.arrangement.exchanges import Exchange
from nnmpi.parallel.arrangement.partition import Unit
from nnmpi.parallel.arrangement.program import micro_batches
from nnmpi.parallel.step_list.chain import Chain, chain_of, gathers_for_use
from nnmpi.parallel.step_list.op import PASSES, Kind, Op
from nnmpi.parallel.step_list.step import step_list
from nnmpi.planning.exchange_time import ExchangeTimes
from nnmpi.planning.machine import Machine
from nnmpi.planning.paper.rank import few_micro_batches
from nnmpi.sim.clock import Timing, timed

COLUMNS = {Kind.F: (0,), Kind.RECOMPUTE: (0,), Kind.B: (1, 2), Kind.I: (1,), Kind.W: (2,)}
"""By pass, its columns in the times of units: forward, gradients of inputs, of parameters."""

LINK = "link"
"""The lane of exchanges between nodes."""


class Waits(NamedTuple):
    """The seconds of sums and gathers that passes do not hide: before the update, and of values
    that are gathered behind it."""

    sums: float = 0.0
    update: float = 0.0


Arrivals = defaultdict[tuple[Kind, int], dict[int, float]]
"""When sums and gathers end, by kind and bucket, and by micro-batch."""


class PassTimes(NamedTuple):
    """The seconds of passes of a micro-batch.

    passes     of each stage and kind
    on_link    of these, how long they use the link between nodes
    of_units   of the units of the whole model: forward, gradients of inputs, of parameters
    units      of the whole model
    """

    passes: Mapping[tuple[int, Kind], float]
    on_link: Mapping[tuple[int, Kind], float]
    of_units: np.ndarray
    units: Sequence[Unit]


class RankWaits:
    """The waits of one rank, for lists of any number of micro-batches.

    by_op   the exchanges of operations on buckets, by kind and bucket
    """

    def __init__(
        self,
        a: Arrangement,
        rank: int,
        by_op: Mapping[tuple[Kind, int], Sequence[Exchange]],
        times: PassTimes,
        exchanges: ExchangeTimes,
        machine: Machine,
    ) -> None:
        self._a, self._rank, self._by_op, self._times = a, rank, by_op, times
        self._exchanges, self._machine = exchanges, machine
        self._for_use, chain = gathers_for_use(a), chain_of(a, rank)
        self._shares = {
            key: share
            for stage in chain.of_stage
            for key, share in unit_shares(a, chain, stage, times).items()
        }

    def waits(self) -> Waits:
        """The waits in a step over a batch of the config."""
        sizes = micro_batches(self._a, self._rank, self._a.config.batch_size)
        few, period = few_micro_batches(self._a, sizes)
        if few + period >= len(sizes):
            return self._of(len(sizes))
        first, second = self._of(few), self._of(few + period)
        periods = (len(sizes) - few) // period
        return Waits(*(x + periods * (y - x) for x, y in zip(first, second, strict=True)))

    def _of(self, micro: int) -> Waits:
        """The waits in a step of so many micro-batches, up to the sums that follow it."""
        arrivals, ops = Arrivals(dict), _until_summed(self._a, self._rank, micro)
        timing = cache(partial(self._timing, arrivals))
        computing = clock = gathered = 0.0
        for _, op, _, ended in timed([ops], lambda _, op: timing(op.kind, op.at, op.stage)):
            of_op = timing(op.kind, op.at, op.stage)
            if of_op.lane is None:
                computing += of_op.seconds * (op.kind in PASSES)
                gathered += (ended - clock) * (op.kind in (Kind.GATHER, Kind.WAIT))
                clock = ended
        behind = 0.0 if self._for_use else gathered
        return Waits(max(clock - computing - behind, 0.0), behind)

    def _timing(self, arrivals: Arrivals, kind: Kind, at: int, stage: int) -> Timing:
        if kind in PASSES:
            share, of_pass = self._shares[at, kind], (stage, kind)
            seconds = share * self._times.passes.get(of_pass, 0.0)
            return Timing(seconds, beside=share * self._times.on_link[of_pass], link=LINK)
        exchanges = self._by_op.get((kind, at), ())
        seconds = self._exchanges.total(exchanges)
        if kind in (Kind.SUM, Kind.GATHER):
            lane = LINK if exchanges and self._is_hidden(kind, exchanges[0]) else None
            return Timing(seconds, lane, given=arrivals[kind, at])
        begun = {Kind.FINISH: Kind.SUM, Kind.WAIT: Kind.GATHER}.get(kind)
        # later phases of compressed sums begin here, behind what is on its way
        return Timing(0.0, None, arrivals[begun, at] if begun else None, None, seconds, LINK)

    def _is_hidden(self, kind: Kind, exchange: Exchange) -> bool:
        """True if an exchange goes on while the rank computes."""
        is_behind = kind is Kind.GATHER and not self._for_use
        is_of_passes = kind is Kind.GATHER or self._a.store.scatters
        by = ("zero1",) if is_behind else ("dp", "zero3") if is_of_passes else ("dp",)
        if any(hides(self._machine, what) for what in by):
            return True
        # a description says what its software hides behind the next step
        is_described = is_behind and self._machine.sheet is not None
        return not is_described and self._exchanges.is_between_nodes(exchange)


@cached
def _until_summed(a: Arrangement, rank: int, micro: int) -> Sequence[Op]:
    """The list of a rank, from the gathers behind the update before to the last sum over
    replicas."""
    step = step_list(a, rank, micro)
    end = step.ops.index(Op((*step.totals, Kind.AGREE)[0]))
    return [*(Op(Kind.GATHER, b) for b in step.begins), *step.ops[:end]]


def unit_shares(
    a: Arrangement, chain: Chain, stage: int, times: PassTimes
) -> dict[tuple[int, Kind], float]:
    """The share that each unit of a stage has in the seconds of each kind of pass."""
    starts = [unit.nodes.start for unit in times.units]
    begins = [*unit_begins(a, chain, stage), a.division.stages[stage].nodes.stop]
    rows, units = [bisect_left(starts, begin) for begin in begins], chain.of_stage[stage]
    shares = dict[tuple[int, Kind], float]()
    for kind, columns in COLUMNS.items():
        of_rows = times.of_units[:, columns].sum(axis=1)
        parts = [float(of_rows[lo:hi].sum()) for lo, hi in pairwise(rows)]
        for u, part in zip(units, parts, strict=True):
            shares[u, kind] = part / sum(parts) if any(parts) else 1 / len(parts)
    return shares


def unit_begins(a: Arrangement, chain: Chain, stage: int) -> list[int]:
    """The first node of each unit of a stage, as far as nodes with parameters say."""
    nodes = a.division.stages[stage].nodes
    first = dict[int, int]()
    for k in nodes:
        for v in a.graph.nodes[k].variables:
            first.setdefault(v, k)
    begins = [nodes.start]
    for u in chain.of_stage[stage][1:]:
        used = [first[v] for v in chain.units[u].variables if v in first]
        begins.append(max(begins[-1], min(used, default=begins[-1])))
    return begins


def hides(machine: Machine, what: str) -> bool:
    """True if a described machine hides these exchanges behind computing."""
    return machine.sheet is not None and what in machine.sheet.hides
