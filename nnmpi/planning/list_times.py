"""The seconds of the operations of a list, and where they go on: on the rank, or beside it.

    rank    F0 F1 B1     B0     FINISH1 FINISH0
    link             SUM1 ──── SUM0 ────

Sums and gathers between nodes go on while the rank computes, unless exchanges within passes need
the same link. On a node ranks move bytes themselves, so a rank makes its exchanges one by one,
unless its machine hides them.
"""

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from nnmpi.parallel.arrangement.arrangement import Arrangement
from nnmpi.parallel.arrangement.exchanges import Exchange
from nnmpi.parallel.arrangement.partition import Unit
from nnmpi.parallel.step_list.chain import Chain, chain_of, gathers_for_use
from nnmpi.parallel.step_list.op import MESSAGES, PASSES, SENDS, Kind, Op
from nnmpi.parallel.step_list.passes import message_of
from nnmpi.parallel.step_list.step import StepList
from nnmpi.planning.exchange_time import ExchangeTimes
from nnmpi.planning.machine import Machine
from nnmpi.sim.clock import Timing

COLUMNS = {Kind.F: (0,), Kind.RECOMPUTE: (0,), Kind.B: (1, 2), Kind.I: (1,), Kind.W: (2,)}
"""By pass, its columns in the times of units: forward, gradients of inputs, of parameters."""

LINK = "link"
"""The lane of exchanges between nodes."""

BEGINS = {
    Kind.FINISH: Kind.SUM,
    Kind.WAIT: Kind.GATHER,
    Kind.RECV_F: Kind.SEND_F,
    Kind.RECV_B: Kind.SEND_B,
}
"""By an operation that ends something, the one that begins it."""

Arrivals = defaultdict[tuple[Kind, int], dict[int, float]]
"""When sums, gathers and messages arrive, by the operation that begins them, and by
micro-batch."""


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


class Messages(NamedTuple):
    """The messages between all ranks of a pipeline: their arrivals, and the seconds of one by its
    kind and the stage that sends it."""

    arrivals: Arrivals
    seconds: Mapping[tuple[Kind, int], float]


class ListTimes:
    """The seconds of the operations in lists of one rank.

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
        self.a, self.rank = a, rank
        self._by_op, self._times, self._exchanges, self._machine = by_op, times, exchanges, machine
        self._for_use, self._chain = gathers_for_use(a), chain_of(a, rank)
        self._shares = {
            key: share
            for stage in self._chain.of_stage
            for key, share in unit_shares(a, self._chain, stage, times).items()
        }

    def timing(
        self,
        arrivals: Arrivals,
        messages: Messages | None = None,
        update: float = 0.0,
    ) -> Callable[[Op], Timing]:
        """Returns the timing of each operation, with the arrivals of this rank's sums and gathers.
        Without `messages` these arrive at once; `update` is the seconds of the optimizer."""
        known = cache(partial(self._timing, arrivals, messages, update))
        return lambda op: known(op.kind, op.at, op.stage)

    def _timing(
        self,
        arrivals: Arrivals,
        messages: Messages | None,
        update: float,
        kind: Kind,
        at: int,
        stage: int,
    ) -> Timing:
        if kind in PASSES:
            share, of_pass = self._shares[at, kind], (stage, kind)
            seconds = share * self._times.passes.get(of_pass, 0.0)
            awaited, op = None, Op(kind, at, 0, stage=stage)
            if messages and (taken := message_of(op, self._chain, sends=False)):
                awaited = messages.arrivals[BEGINS[taken.kind], taken.at]
            return Timing(seconds, None, awaited, None, share * self._times.on_link[of_pass], LINK)
        if kind in MESSAGES:
            if messages is None or kind not in SENDS:
                return Timing(0.0)
            seconds = messages.seconds.get((kind, stage), 0.0)
            return Timing(seconds, (kind, at), given=messages.arrivals[kind, at])
        exchanges = self._by_op.get((kind, at), ())
        seconds = self._exchanges.total(exchanges)
        if kind in (Kind.SUM, Kind.GATHER):
            lane = LINK if exchanges and self._is_hidden(kind, exchanges[0]) else None
            return Timing(seconds, lane, given=arrivals[kind, at])
        awaited = arrivals[BEGINS[kind], at] if kind in BEGINS else None
        of_rank = update if kind is Kind.APPLY else 0.0
        # later phases of compressed sums begin here, behind what is on its way
        return Timing(of_rank, None, awaited, None, seconds, LINK)

    def _is_hidden(self, kind: Kind, exchange: Exchange) -> bool:
        """True if an exchange goes on while the rank computes."""
        is_behind = kind is Kind.GATHER and not self._for_use
        is_of_passes = kind is Kind.GATHER or self.a.store.scatters
        by = ("zero1",) if is_behind else ("dp", "zero3") if is_of_passes else ("dp",)
        if any(hides(self._machine, what) for what in by):
            return True
        # a description says what its software hides behind the next step
        is_described = is_behind and self._machine.sheet is not None
        return not is_described and self._exchanges.is_between_nodes(exchange)


def unit_shares(
    a: Arrangement, chain: Chain, stage: int, times: PassTimes
) -> dict[tuple[int, Kind], float]:
    """The share that each unit of a stage has in the seconds of each kind of pass."""
    starts, shares = [unit.nodes.start for unit in times.units], dict[tuple[int, Kind], float]()
    for kind, columns in COLUMNS.items():
        seconds = times.of_units[:, columns].sum(axis=1).tolist()
        for u, share in shares_of(a, chain, stage, starts, seconds).items():
            shares[u, kind] = share
    return shares


def shares_of(
    a: Arrangement, chain: Chain, stage: int, starts: Sequence[int], amounts: Sequence[float]
) -> dict[int, float]:
    """The share that each unit of a stage has in the amounts of parts of the model, which begin at
    the nodes `starts`; equal ones where all amounts are 0."""
    begins = [*unit_begins(a, chain, stage), a.division.stages[stage].nodes.stop]
    rows, units = pairwise(bisect_left(starts, begin) for begin in begins), chain.of_stage[stage]
    of_units = [float(sum(amounts[lo:hi])) for lo, hi in rows]
    total = sum(of_units)
    each = [part / total if total else 1 / len(of_units) for part in of_units]
    return dict(zip(units, each, strict=True))


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


def whole_list(step: StepList) -> list[Op]:
    """A list behind the gathers that are under way when it begins, from the update before."""
    return [*(Op(Kind.GATHER, b) for b in step.begins), *step.ops]
