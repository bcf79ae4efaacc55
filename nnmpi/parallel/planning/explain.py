"""The parts of the time of a step; the parts of a term add up to it."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from nnmpi.parallel.arrangement.arrangement import Arrangement
from nnmpi.parallel.arrangement.exchanges import Exchange
from nnmpi.parallel.planning.exchange_time import ExchangeTimes
from nnmpi.parallel.planning.machine import UnitTimes
from nnmpi.parallel.planning.step_time import CostModel, RankTimes, StepModel, step_model
from nnmpi.schedules.op import Kind
from nnmpi.sim.drawing.tables import amount, plural


class StepPart(NamedTuple):
    """A part of a step.

    term     of a StepTime
    what     in words
    times    how often, where it is the same each time
    seconds  all together
    """

    term: str
    what: str
    times: int
    seconds: float


HIDDEN = "hidden behind passes"

SHOWN = 12
"""Digits of seconds: sums of the same numbers in another order differ in later ones."""


def parts_of_step(a: Arrangement, costs: CostModel) -> tuple[StepModel, list[StepPart]]:
    """The time of a step, and its parts, the longest of each term first."""
    step = step_model(a, costs)
    busiest, last = step.ranks[step.busiest], step.ranks[step.last]
    updated = max(step.ranks, key=lambda one: one.update)
    found = [
        *_of_units(a, costs, step),
        *_of_exchanges("tensor", busiest.inside, costs.exchanges),
        StepPart("bubble", "waiting for other stages", 1, step.time.bubble),
        *_of_exchanges("sums", (*last.gathers, *last.sums), costs.exchanges),
        *_of_update(a, costs, updated),
        *_of_others(costs, step),
    ]
    sums = sum(part.seconds for part in found if part.term == "sums")
    if sums > step.time.sums:
        found.append(StepPart("sums", HIDDEN, 1, step.time.sums - sums))
    order = {term: k for k, term in enumerate(step.time._fields)}
    shown = [part for part in found if round(part.seconds, SHOWN)]
    return step, sorted(shown, key=lambda part: (order[part.term], -part.seconds))


def _of_units(a: Arrangement, costs: CostModel, step: StepModel) -> Iterator[StepPart]:
    """Units of the rank that computes longest; those of one kind together."""
    rank = a.mesh.group(a.mesh.size - 1, "pp")[step.busiest]
    counts = Counter((op.stage, op.kind) for op in step.programs[step.busiest] if op.micro >= 0)
    rows = costs.model.of(a.sharding, a.config, max(step.micro)).tolist()
    of_units = (UnitTimes(*row) for row in rows)
    found = defaultdict[str, tuple[int, float]](lambda: (0, 0.0))
    for unit, times in zip(costs.model.units, of_units, strict=True):
        for s in a.model_on(rank).stages:
            if unit.nodes.start in a.stages[s]:
                count, seconds = found[str(unit)]
                found[str(unit)] = count + 1, seconds + _of_unit(times, s, counts)
    for what, (count, seconds) in found.items():
        yield StepPart("compute", f"{plural(count, 'unit')} {what}", count, seconds)


def _of_unit(t: UnitTimes, stage: int, counts: Mapping[tuple[int, Kind], int]) -> float:
    """Seconds of all its passes in a step; the first stage has all of a backward pass in W."""
    of = {
        (Kind.F, Kind.RECOMPUTE): t.forward,
        (Kind.B,): t.input_gradient + t.weight_gradient,
        (Kind.I,): t.input_gradient if stage else 0.0,
        (Kind.W,): t.weight_gradient + (0.0 if stage else t.input_gradient),
    }
    return sum(counts.get((stage, k), 0) * seconds for kinds, seconds in of.items() for k in kinds)


def _of_exchanges(term: str, those: Iterable[Exchange], times: ExchangeTimes) -> Iterator[StepPart]:
    """Exchanges; those of one kind and length together."""
    found = defaultdict[str, tuple[int, float]](lambda: (0, 0.0))
    for one in those:
        if len(one.group) > 1 and one.times:
            how = f" by {one.algorithm}" if one.algorithm else ""
            name = one.operation.name.lower().replace("_", "-")
            of = f"of {amount(one.nbytes)} over {plural(len(one.group), 'rank')}"
            what = f"{one.what}: {name}{how} {of}"
            count, seconds = found[what]
            found[what] = count + one.times, seconds + times.seconds(one)
    for what, (count, seconds) in found.items():
        yield StepPart(term, what, count, seconds)


def _of_update(a: Arrangement, costs: CostModel, rank: RankTimes) -> Iterator[StepPart]:
    own = rank.update - costs.exchanges.total(rank.around)
    what = f"{a.config.optimizer} of {plural(rank.numbers, 'number')}"
    yield StepPart("update", what, 1, own)
    yield from _of_exchanges("update", rank.around, costs.exchanges)


def _of_others(costs: CostModel, step: StepModel) -> Iterator[StepPart]:
    once = costs.machine.step
    yield StepPart("other", "a step, besides units, exchanges and the update", 1, once)
    what = "micro-batches, besides units and exchanges"
    yield StepPart("other", what, len(step.micro), step.time.other - once)


# ---- beside a trace

WAITING, UPDATE, OTHER = "exchanges and waiting", "update", "other"
PASSES = {"F": "forward", "RECOMPUTE": "forward"} | dict.fromkeys(("B", "I", "W"), "backward")
"""What kinds of operations, and of spans of a trace, count as."""


def as_traced(costs: CostModel, step: StepModel) -> dict[str, float]:
    """Seconds of the rank that computes longest, by what a trace tells apart."""
    found = defaultdict[str, float](float)
    for op in step.programs[step.busiest]:
        if op.micro >= 0 and op.kind.value in PASSES:
            seconds = step.ranks[step.busiest].compute[op.stage].get(op.kind, 0.0)
            found[pass_name(op.kind.value, op.stage)] += seconds
    updated = max(step.ranks, key=lambda one: one.update)
    around = costs.exchanges.total(updated.around)
    waiting = step.time.tensor + step.time.bubble + step.time.sums + around
    ends = {WAITING: waiting, UPDATE: updated.update - around, OTHER: step.time.other}
    return {**found, **ends}


def pass_name(kind: str, stage: int) -> str:
    """The name of a pass, both in predictions and in traces."""
    return f"{PASSES[kind]} of stage {stage}"
