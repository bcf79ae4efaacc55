"""The subcommand `pipeline` of `python -m nnmpi.simulate`: its options, and its output."""

import argparse
import json
from pathlib import Path

from nnmpi.schedules import SCHEDULES
from nnmpi.sim import pipeline_report as show
from nnmpi.sim.svg import svg

HELP = "schedules of a pipeline"

CUT = 1.5  # a picture of several schedules ends where the second longest does, if that is so much


def add_options(p: argparse.ArgumentParser) -> None:
    """The options of the subcommand."""
    plan = p.add_argument_group("pipeline")
    plan.add_argument("--schedule", choices=SCHEDULES)
    plan.add_argument("--compare", action="store_true", help="all schedules side by side")
    plan.add_argument(
        "--stages", type=int, required=True, metavar="P", help="ranks of the pipeline"
    )
    plan.add_argument("--micro-batches", type=int, required=True, metavar="M")
    plan.add_argument(
        "--virtual-stages", type=int, metavar="V", help="stages a rank of interleaved (default 2)"
    )
    plan.add_argument("--recompute", action="store_true", help="forward passes run again")
    times = p.add_argument_group("times", "in any unit")
    times.add_argument(
        "--forward", type=float, default=1.0, help="a micro-batch on a rank (default 1)"
    )
    times.add_argument("--backward", type=float, default=2.0, help="the same (default 2)")
    times.add_argument("--send", type=float, default=0.0, help="a message (default 0)")
    output = p.add_argument_group("output")
    output.add_argument("--svg", type=Path, metavar="FILE", help="write a picture")
    output.add_argument("--json", action="store_true", help="print JSON")


def run(options: argparse.Namespace) -> str:
    """The output of `pipeline`."""
    if bool(options.schedule) == options.compare:
        raise ValueError("give one of --schedule and --compare")
    names = list(SCHEDULES) if options.compare else [options.schedule]
    if options.schedule and options.virtual_stages is not None:
        schedule = SCHEDULES[options.schedule]
        schedule.check(options.stages, options.micro_batches, options.virtual_stages)
    q = show.Question(
        options.stages,
        options.micro_batches,
        options.virtual_stages,
        options.forward,
        options.backward,
        options.send,
        options.recompute,
    )
    for name in names:
        show.check(name, q)
    answers = [show.answer(name, q) for name in names]
    if options.svg:
        options.svg.write_text(picture(answers, q), encoding="utf-8")
    if options.json:
        records = [show.record(a, q) for a in answers]
        return json.dumps(records if options.compare else records[0], indent=2)
    return show.table(answers, q) if options.compare else show.report(answers[0], q)


def picture(answers: list[show.Answer], q: show.Question) -> str:
    """All timelines in one SVG document, on one scale."""
    timelines = [a.result.timeline for a in answers]
    ends = sorted(timeline.end for timeline in timelines)
    until = ends[-2] if len(ends) > 1 and ends[-1] > CUT * ends[-2] else None
    return svg(timelines, show.heading("pipeline", q).replace("\n", "; "), until)
