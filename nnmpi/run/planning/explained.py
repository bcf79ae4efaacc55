"""--explain: the parts of the time of one layout, beside those of a step that was traced."""

import argparse
import shlex
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from nnmpi.options import cli
from nnmpi.options.config import Config
from nnmpi.parallel.arrangement.arrangement import Arrangement
from nnmpi.parallel.planning.exchange_time import with_fastest_sum
from nnmpi.parallel.planning.explain import StepPart, by_part, parts_of_step, spans_of_step
from nnmpi.parallel.planning.step_time import CostModel, StepTime
from nnmpi.run.planning.planning import Basis
from nnmpi.run.report import Event
from nnmpi.sim.commands.trace import TraceFile
from nnmpi.sim.drawing.tables import columns


class Explained(NamedTuple):
    """The time of a step of a layout.

    parts     of the terms, which add up to them
    traced    seconds by what a trace tells apart: predicted, and measured; without a trace none
    """

    layout: str
    time: StepTime
    parts: list[StepPart]
    traced: list[tuple[str, float, float]]

    def event(self) -> Event:
        """As JSON has it."""
        names = "what", "predicted", "measured"
        return {
            "event": "explain",
            "layout": self.layout,
            "seconds": self.time.seconds,
            **self.time._asdict(),
            "parts": [part._asdict() for part in self.parts],
            "traced": [dict(zip(names, row, strict=True)) for row in self.traced],
        }


def explained(by: Basis, layout: str, trace: Path | None) -> Explained:
    """The time of a step of a layout, term by term; raises ValueError where none is possible."""
    p = cli.Parser(prog="--explain", argument_default=argparse.SUPPRESS, add_help=False)
    cli.add_flags(p, cli.LAYOUT_GROUPS)
    given = cli.with_layout(vars(p.parse_args(shlex.split(layout))))
    config: Config = replace(by.paper.plain, **given)
    if config.plan is not None:
        raise ValueError("--explain is of one layout: leave --plan out")
    a = with_fastest_sum(by.paper.arranged_by(config), by.costs.exchanges)
    costs = by.costs
    _check_stages(a, costs)
    step, parts = parts_of_step(a, costs)
    traced = list[tuple[str, float, float]]()
    if trace is not None:
        rank = a.mesh.group(a.mesh.size - 1, "pp")[step.busiest]
        found = measured(trace, rank, a.ranks)
        said = by_part(spans_of_step(costs, step), step.time.seconds)
        names = dict.fromkeys((*said, *found))
        traced = [(name, said.get(name, 0.0), found.get(name, 0.0)) for name in names]
        traced.sort(key=lambda row: -abs(row[2] - row[1]))
    return Explained(layout, step.time, parts, traced)


def _check_stages(a: Arrangement, costs: CostModel) -> None:
    """Raises ValueError if a stage begins within a unit, whose time is known as a whole."""
    begins = {unit.nodes.start: unit.first for unit in costs.model.units}
    for s, nodes in enumerate(a.stages):
        if nodes.start not in begins:
            raise ValueError(
                f"stage {s} begins within layers that run together, and their time is known as a "
                f"whole: --cut at some of {', '.join(map(str, sorted(begins.values())[1:]))}"
            )


def measured(path: Path, rank: int, ranks: int) -> Mapping[str, float]:
    """Seconds of a rank in the step of median time."""
    trace = TraceFile.read(path)
    if trace.ranks != ranks:
        raise ValueError(
            f"{path} has {trace.ranks} ranks, and the layout has {ranks}: give --ranks "
            f"{trace.ranks}, or the trace of a run of this layout"
        )
    timeline = trace.timeline(trace.median_step())
    found = by_part((span for span in timeline.spans if span.rank == rank), timeline.end)
    return {name: milliseconds / 1e3 for name, milliseconds in found.items()}


def as_text(e: Event) -> str:
    """The parts as a table, and those of a trace as another one."""
    rows = [["part", "term", "times", "ms"]]
    for part in e["parts"]:
        rows.append([part["what"], part["term"], f"{part['times']:,}", _ms(part["seconds"])])
    rows.append(["a step", "", "", _ms(e["seconds"])])
    lines = [f"{e['layout']}: {_ms(e['seconds'])} ms a step, of the rank that others wait for"]
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
