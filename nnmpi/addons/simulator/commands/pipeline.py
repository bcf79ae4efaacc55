"""`python -m nnmpi.simulate pipeline`: timelines and bubbles of schedules."""

import argparse
from pathlib import Path
from typing import Any, NamedTuple

from nnmpi.addons.simulator.drawing.svg import svg
from nnmpi.addons.simulator.drawing.timeline import draw
from nnmpi.addons.simulator.network import add_number
from nnmpi.addons.simulator.pipeline import Costs, Simulation, simulate
from nnmpi.options.tables import table
from nnmpi.schedules.find import find
from nnmpi.schedules.lists.of_schedule import lists
from nnmpi.schedules.pipeline import SCHEDULES, Schedule

HELP = "schedules of a pipeline"

MIN_VALUE, MAX_VALUE = 1e-30, 1e30  # times in this range have sums and ratios without overflow
MAX_PASSES = 100_000  # forward passes of all stages, simulated in a few seconds
CUT = 1.5  # a picture cuts off the longest schedule if it takes so many times the second longest


class SimulatedSchedule(NamedTuple):
    """A pipeline schedule, its simulation, and the bubble by the literature's formula, if any."""

    name: str
    schedule: Schedule
    stages: int  # of a rank
    result: Simulation
    formula: float | None

    @property
    def label(self) -> str:
        """The name of the schedule, with the number of stages per rank if there are several."""
        return f"{self.name}, {self.stages} stages a rank" if self.stages > 1 else self.name


def add_options(p: argparse.ArgumentParser) -> None:
    """Adds the options of the subcommand `pipeline`."""
    plan = p.add_argument_group("pipeline")
    names = f"{', '.join(SCHEDULES)} or package.module:NAME"
    plan.add_argument("--schedule", metavar="SCHEDULE", help=names)
    compare = "these schedules side by side, as gpipe,1f1b; without names all"
    plan.add_argument(
        "--compare", nargs="?", const=",".join(SCHEDULES), metavar="NAMES", help=compare
    )
    plan.add_argument(
        "--stages", type=int, required=True, metavar="P", help="ranks of the pipeline"
    )
    plan.add_argument("--micro-batches", type=int, required=True, metavar="M")
    plan.add_argument(
        "--virtual-stages", type=int, metavar="V", help="stages a rank, interleaved (default 2)"
    )
    plan.add_argument("--recompute", action="store_true", help="forward passes are recomputed")
    times = p.add_argument_group("times", "in any unit")
    add_number(times, "--forward", "1", "forward pass of a micro-batch on a rank")
    add_number(times, "--backward", "2", "backward pass of a micro-batch on a rank")
    add_number(times, "--send", "0", "one message")
    output = p.add_argument_group("output")
    output.add_argument("--svg", type=Path, metavar="FILE", help="write a picture")
    output.add_argument("--json", action="store_true", help="print JSON")


def run(options: argparse.Namespace) -> Any:
    """Returns the output of the subcommand `pipeline`, as text or as JSON records."""
    if bool(options.schedule) == bool(options.compare):
        raise ValueError("give one of --schedule and --compare")
    names = options.compare.split(",") if options.compare else [options.schedule]
    simulated = [_simulated(name, options) for name in names]
    if options.svg:
        options.svg.write_text(_picture(simulated, options), encoding="utf-8")
    if options.json:
        records = [_record(s, options) for s in simulated]
        return records if options.compare else records[0]
    return _table(simulated, options) if options.compare else _report(simulated[0], options)


def _stages_of(schedule: Schedule, o: argparse.Namespace) -> int:
    """Returns the stages per rank of a schedule: if only one number is allowed, this in a
    comparison or without --virtual-stages; otherwise the option's, by default 2."""
    if o.virtual_stages is None or (o.compare and not schedule.virtual):
        return schedule.stages_a_rank(2)
    return int(o.virtual_stages)


def _check(o: argparse.Namespace, v: int) -> None:
    """Raises ValueError if a number is out of range for a simulation with v stages a rank."""
    for name, value in (("forward", o.forward), ("backward", o.backward), ("send", o.send)):
        if value and not MIN_VALUE <= value <= MAX_VALUE:
            raise ValueError(
                f"{name} {value} must be 0, or a number from {MIN_VALUE:g} to {MAX_VALUE:g}"
            )
    if not o.forward + o.backward:
        raise ValueError("forward and backward are both 0: give one of them a time")
    passes = o.stages * v * max(o.micro_batches, o.stages)  # fewer do not fill the pipeline
    if passes > MAX_PASSES:
        raise ValueError(
            f"{o.stages * v} stages and {o.micro_batches} micro-batches, counted as at least one a "
            f"rank, make {passes} forward passes, more than {MAX_PASSES}: take fewer"
        )


def _simulated(name: str, o: argparse.Namespace) -> SimulatedSchedule:
    """Simulates the schedule with this name; raises ValueError for numbers out of range."""
    schedule, p, m = find(name), o.stages, o.micro_batches
    v = _stages_of(schedule, o)
    schedule.check(p, m, v)
    _check(o, v)
    result = simulate(
        lists(schedule, p, m, v, o.recompute), Costs.uniform(p, v, o.forward, o.backward, o.send)
    )
    bubble = schedule.bubble(p, m, v)
    return SimulatedSchedule(name, schedule, v, result, None if bubble is None else float(bubble))


def _heading(title: str, o: argparse.Namespace) -> str:
    ranks = "1 rank" if o.stages == 1 else f"{o.stages} ranks"
    micro = "1 micro-batch" if o.micro_batches == 1 else f"{o.micro_batches} micro-batches"
    again = ", recomputed" if o.recompute else ""
    times = f"forward {o.forward:g}, backward {o.backward:g}, send {o.send:g}"
    return f"{title}: {ranks}, {micro}\n{times}{again}"


def _picture(simulated: list[SimulatedSchedule], o: argparse.Namespace) -> str:
    """Returns the timelines of all schedules as one SVG document, on one scale."""
    timelines = []
    for s in simulated:
        about = f"{s.schedule.about}; " * (len(simulated) == 1)  # a long title has small letters
        title = f"{s.label}: {about}bubble {s.result.bubble:.1%}"
        timelines.append(s.result.timeline._replace(title=title))
    ends = sorted(timeline.end for timeline in timelines)
    until = ends[-2] if len(ends) > 1 and ends[-1] > CUT * ends[-2] else None
    return svg(timelines, _heading("pipeline", o).replace("\n", "; "), until)


def _report(s: SimulatedSchedule, o: argparse.Namespace) -> str:
    """Returns the result of one schedule as text: its figures, its ranks and its timeline."""
    schedule, result = s.schedule, s.result
    holds = f"holds {schedule.holds}" * bool(schedule.holds and schedule.formula)
    value = holds if s.formula is None else f"= {s.formula:.4g}"
    formula = " ".join(filter(None, (schedule.formula, value)))
    figures = [
        _heading(s.label, o),
        f"time      {result.makespan:.6g}",
        f"bubble    {result.bubble:.4g} of the time of computation",
        *[f"formula   {formula}"] * bool(formula),
    ]
    cells = {
        "rank": lambda r: f"{r}",
        "busy": lambda r: f"{result.busy[r]:.6g}",
        "idle": lambda r: f"{result.makespan - result.busy[r]:.6g}",
        "micro-batches held": lambda r: f"{result.live[r]}",
        "activations held": lambda r: f"{result.memory[r]:.4g}",
    }
    ranks = table(cells, range(len(result.busy)))
    return "\n\n".join(["\n".join(figures), ranks, draw([result.timeline])])


def _table(simulated: list[SimulatedSchedule], o: argparse.Namespace) -> str:
    """Returns a table of schedules; memory is that of the largest rank."""
    cells = {
        "schedule": lambda s: s.label,
        "time": lambda s: f"{s.result.makespan:.6g}",
        "bubble": lambda s: f"{s.result.bubble:.4g}",
        "formula": lambda s: "-" if s.formula is None else f"{s.formula:.4g}",
        "": lambda s: s.schedule.formula,
        "micro-batches held": lambda s: f"{max(s.result.live)}",
        "activations held": lambda s: f"{max(s.result.memory):.4g}",
    }
    return f"{_heading('pipelines', o)}\n{table(cells, simulated)}"


def _record(s: SimulatedSchedule, o: argparse.Namespace) -> dict[str, Any]:
    """Returns the result of one schedule as a JSON object."""
    return {
        "schedule": s.name,
        "ranks": o.stages,
        "micro_batches": o.micro_batches,
        "virtual_stages": s.stages,
        "forward": o.forward,
        "backward": o.backward,
        "send": o.send,
        "recompute": o.recompute,
        "time": s.result.makespan,
        "bubble": s.result.bubble,
        "formula": {"formula": s.schedule.formula, "bubble": s.formula},
        "busy": s.result.busy,
        "micro_batches_held": s.result.live,
        "activations_held": s.result.memory,
    }
