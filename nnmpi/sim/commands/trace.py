"""The subcommand `trace` of `python -m nnmpi.simulate`: steps of a real run, drawn."""

import argparse
from pathlib import Path

from nnmpi.sim.svg import svg
from nnmpi.sim.timeline import draw
from nnmpi.sim.trace_file import TraceFile

HELP = "steps of a real run"


def add_options(p: argparse.ArgumentParser) -> None:
    """The options of the subcommand."""
    p.add_argument("file", type=Path, metavar="FILE", help="of python -m nnmpi.train --trace")
    p.add_argument("--step", type=int, metavar="K", help="default: the one of median time")
    p.add_argument("--steps", type=int, default=1, metavar="N", help="so many steps (default 1)")
    p.add_argument("--svg", type=Path, metavar="FILE", help="write a picture")


def run(options: argparse.Namespace) -> str:
    """The output of `trace`."""
    if options.steps < 1:
        raise ValueError(f"--steps {options.steps} must be at least 1")
    if options.svg and options.svg.resolve() == options.file.resolve():
        raise ValueError(f"--svg {options.svg} is the trace itself; name another file")
    trace = TraceFile.read(options.file)
    first = trace.median_step() if options.step is None else options.step
    timeline = trace.timeline(first, options.steps)
    if options.svg:
        options.svg.write_text(svg([timeline]), encoding="utf-8")
    return f"{draw([timeline])}\n\n{timeline.end:.4g} ms"
