"""Computes the seconds of the operations in the list that a rank carries out in a step, and the
lane in which each runs: the rank itself, or a link, on which exchanges run while the rank computes.

    rank    F0 F1 B1     B0     FINISH1 FINISH0
    link             SUM1 ──── SUM0 ────

Sums and gathers between nodes run while the rank computes, unless exchanges within passes need the
same link. Within a node the ranks copy the bytes themselves, so a rank makes its exchanges one
after the other, unless the description of its machine says that they are hidden.
"""

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from nnmpi.addons.planning.exchange_time import ExchangeTimes
from nnmpi.addons.planning.machine import Machine
from nnmpi.addons.simulator.clock import Cost
from nnmpi.parallel.arrangement.arrangement import Arrangement
from nnmpi.parallel.arrangement.exchanges import Exchange
from nnmpi.parallel.arrangement.partition import Unit
from nnmpi.parallel.step_list.chain import chain_of, gathers_for_use
from nnmpi.schedules.lists.chain import Chain
from nnmpi.schedules.op import PASSES, SENDS, Kind, Op

COLUMNS = {Kind.F: (0,), Kind.RECOMPUTE: (0,), Kind.B: (1, 2), Kind.I: (1,), Kind.W: (2,)}
"""Columns of passes in unit times: forward, inputs' gradients, parameters' gradients."""

LINK = "link"
"""The lane of a timeline for exchanges between nodes."""


class PassTimes(NamedTuple):
    """The seconds of a rank's passes over one micro-batch.

    passes     a dict: (stage, kind of pass) -> seconds
    on_link    the same for the seconds in which a pass uses the link between nodes
    of_units   seconds of all units, (units, 3): forward, gradients of inputs and of parameters"""

    passes: Mapping[tuple[int, Kind], float]
    on_link: Mapping[tuple[int, Kind], float]
    of_units: np.ndarray
    units: Sequence[Unit]


class ListTimes:
    """Predicts how many seconds each operation takes that one rank carries out in a step.

    by_op      a dict: (kind of operation, bucket) -> the collectives that such an operation starts
    times      the seconds of the rank's passes
    messages   a dict: (kind of message, stage that sends it) -> the seconds that it takes
    update     the seconds of the optimizer
    exchanges  predicts the seconds of a collective
    """

    def __init__(
        self,
        a: Arrangement,
        rank: int,
        by_op: Mapping[tuple[Kind, int], Sequence[Exchange]],
        times: PassTimes,
        messages: Mapping[tuple[Kind, int], float],
        update: float,
        exchanges: ExchangeTimes,
        machine: Machine,
    ) -> None:
        self.a, self.rank = a, rank
        self._by_op, self._times, self._exchanges, self._machine = by_op, times, exchanges, machine
        self._messages, self._update = messages, update
        self._for_use, chain = gathers_for_use(a), chain_of(a, rank)
        self._shares = {
            key: share
            for stage in chain.of_stage
            for key, share in unit_shares(a, chain, stage, times).items()
        }

    def cost(self, op: Op) -> Cost:
        """Returns the cost of an operation: its seconds, and the lane on which it runs."""
        kind, link = op.kind, (op.kind, op.stage)
        if kind in PASSES:
            share, of_pass = self._shares[op.at, kind], (op.stage, kind)
            seconds = share * self._times.passes.get(of_pass, 0.0)
            return Cost(seconds, beside=share * self._times.on_link[of_pass], link=LINK)
        if kind in SENDS:
            return Cost(self._messages.get(link, 0.0), link)
        exchanges = self._by_op.get((kind, op.at), ())
        seconds = self._exchanges.total(exchanges)
        if kind in (Kind.SUM, Kind.GATHER):
            is_beside = exchanges and self._is_hidden(kind, exchanges[0])
            return Cost(seconds, LINK if is_beside else None)
        of_rank = self._update if kind is Kind.APPLY else 0.0
        # later phases of compressed sums begin here, behind what is on its way
        return Cost(of_rank, beside=seconds, link=LINK)

    def _is_hidden(self, kind: Kind, exchange: Exchange) -> bool:
        """True if the rank computes meanwhile: between nodes, or as the machine's sheet says."""
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
    """Returns a dict: (unit, kind of pass) -> the share of a unit in such a pass through the
    stage."""
    starts, shares = [unit.nodes.start for unit in times.units], dict[tuple[int, Kind], float]()
    for kind, columns in COLUMNS.items():
        seconds = times.of_units[:, columns].sum(axis=1).tolist()
        for u, share in shares_of(a, chain, stage, starts, seconds).items():
            shares[u, kind] = share
    return shares


def shares_of(
    a: Arrangement, chain: Chain, stage: int, starts: Sequence[int], amounts: Sequence[float]
) -> dict[int, float]:
    """Returns the share, from 0 to 1, that each unit of a stage has in `amounts`, such as seconds
    or bytes; equal shares if all are 0.

    `amounts` belong to parts of the model that begin at the graph nodes `starts`; these may be
    smaller than units."""
    begins = [*unit_begins(a, chain, stage), a.division.stages[stage].nodes.stop]
    rows, units = pairwise(bisect_left(starts, begin) for begin in begins), chain.of_stage[stage]
    of_units = [float(sum(amounts[lo:hi])) for lo, hi in rows]
    total = sum(of_units)
    each = [part / total if total else 1 / len(of_units) for part in of_units]
    return dict(zip(units, each, strict=True))


def unit_begins(a: Arrangement, chain: Chain, stage: int) -> list[int]:
    """Returns the first node of each unit of a stage that uses its parameters."""
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
    """True if ranks compute while an exchange of this kind runs, as only a data sheet says."""
    return machine.sheet is not None and what in machine.sheet.hides
