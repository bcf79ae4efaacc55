"""The option --explain of nnmpi.plan: the predicted time of one layout in parts, which add up to
each term, and next to it the times of a traced step."""

import argparse
import shlex
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from nnmpi.addons.planning.exchange_time import ExchangeTimes
from nnmpi.addons.planning.fastest_sum import with_fastest_sum
from nnmpi.addons.planning.rank_costs import CostModel, RankCosts
from nnmpi.addons.planning.run.planning import PlanModels
from nnmpi.addons.planning.step_time import StepModel, host_seconds, stage_passes, step_model
from nnmpi.addons.simulator.commands.trace import TraceFile
from nnmpi.addons.simulator.drawing.timeline import GAPS, Span
from nnmpi.io.output import Event
from nnmpi.options import cli
from nnmpi.options.amounts import amount, plural
from nnmpi.options.config import Config
from nnmpi.options.tables import columns
from nnmpi.parallel.arrangement.arrangement import Arrangement
from nnmpi.parallel.arrangement.exchanges import Exchange


def explained(models: PlanModels, layout: str, trace: Path | None) -> Event:
    """Returns what `nnmpi.plan --explain` prints as JSON values: the predicted seconds of a step,
    term by term and part by part; with the path of a trace, also the measured ones. Raises
    ValueError if the layout is impossible."""
    a = arranged(models, layout)
    step, parts = parts_of_step(a, models.costs)
    return {
        "event": "explain",
        "layout": layout,
        "notes": models.notes if models.costs.machine.sheet is not None else [],
        "seconds": step.time.seconds,
        **step.time._asdict(),
        "parts": [part._asdict() for part in parts],
        "traced": [] if trace is None else _compared(trace, a, models.costs, step),
    }


def arranged(models: PlanModels, layout: str) -> Arrangement:
    """Returns the arrangement of command-line options; raises ValueError if it is impossible."""
    p = cli.Parser(prog="--explain", argument_default=argparse.SUPPRESS, add_help=False)
    cli.add_flags(p, cli.LAYOUT_GROUPS)
    given = cli.with_layout(vars(p.parse_args(shlex.split(layout))))
    config: Config = replace(models.arranger.plain, **given)
    if config.plan is not None:
        raise ValueError("--explain is about one layout: leave --plan out")
    a = with_fastest_sum(models.arranger.arranged_by(config), models.costs.exchanges)
    _check_stages(a, models.costs)
    return a


def _check_stages(a: Arrangement, costs: CostModel) -> None:
    """Raises ValueError if a stage begins within a unit, of which only the whole time is known."""
    begins = {unit.nodes.start: unit.first for unit in costs.model.units}
    for s, nodes in enumerate(a.stages):
        if nodes.start not in begins:
            raise ValueError(
                f"stage {s} begins within layers that run as one, and only their total time is "
                f"known: use a --cut at some of {', '.join(map(str, sorted(begins.values())[1:]))}"
            )


# ---- parts


class StepPart(NamedTuple):
    """A part of the predicted time of a step, such as the passes of one kind of layer.

    term     the term of StepTime that it belongs to
    times    how often it occurs in a step
    seconds  its seconds in a step, for all these times together
    """

    term: str
    what: str
    times: int
    seconds: float


HIDDEN = "hidden behind passes"

SHOWN = 12
"""Decimals of seconds that are compared: sums differ in later ones by order."""


def parts_of_step(a: Arrangement, costs: CostModel) -> tuple[StepModel, list[StepPart]]:
    """Returns a step's predicted time and its parts, the longest first in a term."""
    step = step_model(a, costs)
    last, averaged = step.last.exchanges, step.averaged
    summed = (*last["gathers"], *last["sums"], *averaged.exchanges["averages"])
    touched = f"arrays to send and received: {amount(averaged.bytes_copied)} read and written"
    parts = [
        *_unit_parts(a, costs, step),
        *_exchange_parts("tensor", step.busiest.exchanges["tensor"], costs.exchanges),
        StepPart("bubble", "waiting for other stages", 1, step.time.bubble),
        *_exchange_parts("sums", summed, costs.exchanges),
        StepPart("packing", touched, 1, step.time.packing),
        *_update_parts(a, costs, step.updated),
        *_other_parts(a, costs, step),
    ]
    exposed_of = {"tensor": step.time.tensor, "sums": step.time.sums, "update": step.time.update}
    for term, exposed in exposed_of.items():
        seconds = sum(part.seconds for part in parts if part.term == term)
        # what runs behind passes: a negative part makes the term add up
        if seconds > exposed:
            parts.append(StepPart(term, HIDDEN, 1, exposed - seconds))
    order = {term: k for k, term in enumerate(step.time._fields)}
    shown = [part for part in parts if round(part.seconds, SHOWN)]
    return step, sorted(shown, key=lambda part: (order[part.term], -part.seconds))


def _added_up(term: str, rows: Iterable[tuple[str, int, float]]) -> Iterator[StepPart]:
    """Yields a term's parts from rows, of which equal texts are added up."""
    totals = defaultdict[str, tuple[int, float]](lambda: (0, 0.0))
    for text, times, seconds in rows:
        count, so_far = totals[text]
        totals[text] = count + times, so_far + seconds
    for text, (count, seconds) in totals.items():
        yield StepPart(term, text, count, seconds)


def _unit_parts(a: Arrangement, costs: CostModel, step: StepModel) -> Iterator[StepPart]:
    """Yields the units of the rank that computes longest, those of one kind as one part."""
    counts = Counter((op.stage, op.kind) for op in step.busiest.stages.passes)
    of_units = costs.model.of(a.sharding, a.config, max(step.micro))
    rows = list[tuple[str, int, float]]()
    for unit, times in zip(costs.model.units, of_units, strict=True):
        for s in step.busiest.compute:
            if unit.nodes.start in a.stages[s]:
                passes = stage_passes(times[None], is_first=s == 0)
                rows.append((str(unit), 1, sum(counts[s, k] * t for k, t in passes.items())))
    for part in _added_up("compute", rows):
        yield part._replace(what=f"{plural(part.times, 'unit')} {part.what}")


def _exchange_parts(
    term: str, exchanges: Iterable[Exchange], times: ExchangeTimes
) -> Iterator[StepPart]:
    """Yields a term's exchanges, equal descriptions as one part."""
    rows = list[tuple[str, int, float]]()
    for e in exchanges:
        if len(e.group) > 1 and e.times:
            how = e.operation.text + f" by {e.algorithm}" * bool(e.algorithm)
            length = f"of {amount(e.nbytes)} over {plural(len(e.group), 'rank')}"
            when = f", every {e.every} steps" * (e.every > 1)
            rows.append((f"{e.what}: {how} {length}{when}", e.times, times.seconds(e)))
    return _added_up(term, rows)


def _update_parts(a: Arrangement, costs: CostModel, rank: RankCosts) -> Iterator[StepPart]:
    text = f"{a.config.optimizer} of {plural(rank.elements, 'number')}"
    yield StepPart("update", text, 1, rank.optimizer(a, costs))
    yield from _exchange_parts("update", rank.exchanges["update"], costs.exchanges)


def _other_parts(a: Arrangement, costs: CostModel, step: StepModel) -> Iterator[StepPart]:
    once, waits = costs.machine.step, host_seconds(a, costs.machine, len(step.micro))
    yield StepPart("other", "rest of a step, without units, exchanges and the update", 1, once)
    text = "rest of the micro-batches, without units and exchanges"
    yield StepPart("other", text, len(step.micro), step.time.other - waits - once)
    yield StepPart("other", "waiting for the host, as its description says", 1, waits)


# ---- beside a trace

LABELS = {
    **dict.fromkeys(("F", "RECOMPUTE"), "forward of stage {}"),
    **dict.fromkeys(("B", "I", "W"), "backward of stage {}"),
    **dict.fromkeys(GAPS, "exchanges and waiting"),
    "APPLY": "update",
}
"""By kind of span, the part of a step to which it belongs."""


def spans_of_step(a: Arrangement, costs: CostModel, step: StepModel) -> Iterator[Span]:
    """Yields the predicted step of the busiest rank as spans of a trace, with one wait."""
    rank, around = step.busiest, step.time.update - step.updated.optimizer(a, costs)
    yield _span("wait", step.time.tensor + step.time.bubble + step.time.sums + around)
    for op in rank.stages.passes:
        if op.kind.value in LABELS:
            yield _span(op.kind.value, rank.compute[op.stage].get(op.kind, 0.0), op.stage, op.micro)
    yield _span("APPLY", step.time.update - around)


def _span(kind: str, seconds: float, stage: int = -1, micro: int = -1) -> Span:
    return Span(0, kind, micro, stage, 0.0, seconds)


def by_part(spans: Iterable[Span]) -> dict[str, float]:
    """Returns the seconds of each part by name, over its spans."""
    parts = defaultdict[str, float](float)
    for span in spans:
        if span.kind in LABELS:
            parts[LABELS[span.kind].format(span.stage)] += span.end - span.start
    return parts


def _compared(trace: Path, a: Arrangement, costs: CostModel, step: StepModel) -> list[Event]:
    """Returns each part with its predicted and measured seconds, the largest difference first."""
    rank = a.mesh.group(a.mesh.size - 1, "pp")[step.ranks.index(step.busiest)]
    predicted = by_part(spans_of_step(a, costs, step))
    predicted["other"] = step.time.packing + step.time.other
    traced = measured(trace, rank, a.ranks)
    rows = [
        {"what": part, "predicted": predicted.get(part, 0.0), "measured": traced.get(part, 0.0)}
        for part in {**predicted, **traced}
    ]
    return sorted(rows, key=lambda row: -abs(row["measured"] - row["predicted"]))


def measured(path: Path, rank: int, ranks: int) -> Mapping[str, float]:
    """Returns the seconds of each part of a rank's step, such as "forward of stage 0", for the
    traced step of median length; raises ValueError unless the trace has `ranks` ranks."""
    trace = TraceFile.read(path)
    if trace.ranks != ranks:
        raise ValueError(
            f"{path} has {trace.ranks} ranks, and the layout has {ranks}: give --ranks "
            f"{trace.ranks}, or the trace of a run of this layout"
        )
    timeline = trace.timeline(trace.median_step())
    parts = by_part(span for span in timeline.spans if span.rank == rank)
    parts["other"] = timeline.end - sum(parts.values())
    return {part: milliseconds / 1e3 for part, milliseconds in parts.items()}


# ---- as text


def as_text(e: Event) -> str:
    """Returns the result of `explained` as a table, and a second one beside a trace."""
    rows = [["part", "term", "times", "ms"]]
    for part in e["parts"]:
        rows.append([part["what"], part["term"], f"{part['times']:,}", _ms(part["seconds"])])
    rows.append(["a step", "", "", _ms(e["seconds"])])
    lines = [f"{e['layout']}: {_ms(e['seconds'])} ms a step, of the rank that others wait for"]
    lines += [f"note: {note}" for note in e.get("notes", ())]
    lines += ["", columns(rows)]
    if e["traced"]:
        head = ["beside the trace, the largest difference first", "predicted", "measured", "more"]
        table = [head]
        for row in e["traced"]:
            both = row["predicted"], row["measured"]
            table.append([row["what"], *map(_ms, both), f"{1e3 * (both[1] - both[0]):+.3f}"])
        lines += ["", columns(table)]
    return "\n".join(lines)


def _ms(seconds: float) -> str:
    return f"{1e3 * seconds:z.3f}"
