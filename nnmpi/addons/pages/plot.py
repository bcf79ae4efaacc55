"""Draws loss and accuracy of one or several runs, from their logs.

It is also the command `python -m nnmpi.plot`. Exit status: 0 written, 1 the file could not be
written, 2 unusable arguments, 130 Ctrl-C.
"""

import argparse
import os
import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from io import StringIO
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np

from nnmpi.addons.pages.curves import AXES, curves
from nnmpi.io.files.atomic import refusing
from nnmpi.io.output.log_file import REMEDY, File, events_of, named, numbered, runs_of
from nnmpi.io.output.messages import Event
from nnmpi.options import cli
from nnmpi.options.quoting import shown
from nnmpi.options.user_files import refusing_others

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

BESIDES = {
    "lr": "learning rate",
    "mean_gradient_norm": "norm of the gradient",
    "epoch_samples_per_second": "samples a second",
    "epoch_tokens_per_second": "tokens a second",
}
"""The quantities that --all adds, with their labels."""

LOSSES = ("loss", "test_loss")
DRAWN = (*AXES.values(), *LOSSES, "accuracy", *BESIDES)
"""The keys of the numbers that are drawn."""

Table: TypeAlias = Mapping[str, np.ndarray]
"""Columns of numbers, by key."""

COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#555555")
MARKED = 30  # with more points than this, only the line is drawn
LARGEST = 1e100  # a larger number leaves a gap in a curve, as infinity does
LONGEST_NAME = 100  # characters


class RunLog(NamedTuple):
    """A run in a log: its name, a title of model and data (`task`), and the numbers to draw, in
    columns per epoch, per step (only if there are few epochs), and per evaluation within epochs."""

    name: str
    task: str
    epochs: Table
    steps: Table
    evaluations: Table

    def table(self, quantity: str) -> Table:
        """Returns the table that has the most values of a quantity such as "loss"; empty if none
        has any."""
        tables = [t for t in (self.steps, self.evaluations, self.epochs) if quantity in t]
        return max(tables, key=lambda table: len(table[quantity]), default={})


def plot(
    logs: File | Sequence[File],
    x: str = "epochs",
    out: File = "training.png",
    everything: bool = False,
) -> None:
    """Draws loss and accuracy of the runs in these logs into the file `out`.

    `x` is epochs, steps or seconds. For runs without accuracy, only the losses are drawn. `out`
    ends in .png, .svg or .pdf. `everything` adds learning rate, gradient norm, and samples or
    tokens per second.
    """
    paths = [logs] if isinstance(logs, str | os.PathLike) else list(logs)
    if not paths:
        raise ValueError("plot: no log was given; name one or more files that --log has written")
    if x not in AXES:
        raise ValueError(f"x {x!r} is not one of {', '.join(AXES)}")
    if problem := cli.picture_problem(out):
        raise ValueError(problem)
    runs = read_logs(paths)
    for run in runs:
        known = run.table("loss")
        if AXES[x] not in known:
            others = " or ".join(name for name, key in AXES.items() if key in known)
            raise ValueError(f"log {shown(run.name)} has no {x}: draw it over {others} instead")
    with refusing(out, "write", "name another file"):
        _figure(runs, x, everything).savefig(out, dpi=120)


def picture(runs: Sequence[RunLog]) -> str | None:
    """Returns an SVG of loss and accuracy over epochs, as wide as its page; None without
    matplotlib."""
    if cli.picture_problem("run.svg"):
        return None
    file = StringIO()
    _figure(runs, "epochs", False).savefig(file, format="svg")
    return re.sub(r'width="[\d.]+pt" height="[\d.]+pt"', 'width="100%"', file.getvalue(), count=1)


def run_figure(start: Event, events: Sequence[Event]) -> "Figure | None":
    """Returns a matplotlib figure of the curves of a run so far; None without matplotlib, or if
    there is nothing to draw yet."""
    run = _run(start, events)
    if not run.table("loss") or cli.picture_problem("run.png"):
        return None
    return _figure([run], "epochs", False)


def _figure(runs: Sequence[RunLog], x: str, everything: bool) -> "Figure":
    from matplotlib.figure import Figure

    panels = _panels(runs, AXES[x], everything)
    wide = min(len(panels), 3 if len(panels) > 4 else 2)
    high = -(-len(panels) // wide)
    below = 0.3 * (len(runs) + 1) if len(runs) > 1 else 0  # inches of the legends
    figure = Figure(figsize=(1 + 6 * wide, 5.2 * high + below), layout="constrained")
    for i, draw in enumerate(panels):
        axes = figure.add_subplot(high, wide, i + 1)
        draw(axes)
        _style(axes, x)
    tasks = {run.task for run in runs}
    title = _plain(tasks.pop()) if len(tasks) == 1 else f"{len(runs)} runs"
    figure.suptitle(title, size=16, x=0.01, ha="left")
    return figure


def _panels(runs: Sequence[RunLog], key: str, everything: bool) -> list[Callable[["Axes"], None]]:
    """Returns a function for each panel of the figure: losses, accuracy, and with `everything`
    more."""
    panels: list[Callable[[Axes], None]] = [partial(_draw_loss, runs=runs, key=key)]
    measured = [run for run in runs if run.table("accuracy")]
    if measured:
        panels.append(partial(_draw_accuracy, runs=measured, key=key))
    is_text = any(run.table("epoch_tokens_per_second") for run in runs)
    for quantity in BESIDES if everything else ():
        with_numbers = [run for run in runs if run.table(quantity)]
        if with_numbers and not (is_text and quantity == "epoch_samples_per_second"):
            panels.append(partial(_draw_numbers, runs=with_numbers, key=key, quantity=quantity))
    return panels


def _draw_numbers(axes: "Axes", runs: Sequence[RunLog], key: str, quantity: str) -> None:
    """Draws a quantity, such as the learning rate, with one line per run and the y axis from 0."""
    for i, run in enumerate(runs):
        _line(axes, run, key, quantity, i, label=_plain(run.name))
    axes.set_ylim(bottom=0)
    axes.set_ylabel(BESIDES[quantity], size=15)
    if len(runs) > 1:
        _legend(axes, "upper right", True)


def _style(axes: "Axes", x: str) -> None:
    """Sets labels, grid and ticks of a panel, large enough for a slide."""
    from matplotlib.ticker import MaxNLocator

    axes.set_xlabel("epoch" if x == "epochs" else x, size=15)
    is_whole = x == "steps" or (x == "epochs" and axes.get_xlim()[1] > 2)
    axes.xaxis.set_major_locator(MaxNLocator("auto", integer=is_whole))
    axes.grid(color="#e4e4e4")
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(which="both", labelsize=13)


def _draw_loss(axes: "Axes", runs: Sequence[RunLog], key: str) -> None:
    """Draws the losses of the runs: of training solid, on held-out samples dashed."""
    from matplotlib.ticker import LogLocator

    several = len(runs) > 1
    for i, run in enumerate(runs):
        _line(axes, run, key, "loss", i, label=_plain(run.name) if several else "training")
        _line(axes, run, key, "test_loss", i, linestyle="--", label="" if several else "test")
    if several:
        axes.plot([], [], linestyle="--", color="#777777", linewidth=2.2, label="test")
    values = np.concatenate([run.table(key).get(key, ()) for run in runs for key in LOSSES])
    known = values[~np.isnan(values)]
    if known.size and known.min() > 0:
        axes.set_yscale("log")
        is_wide = known.max() > 1e4 * known.min()  # a run that diverged: no room for 2 and 5
        axes.yaxis.set_major_locator(LogLocator(subs=(1,) if is_wide else (1, 2, 5)))
        axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
        axes.yaxis.set_minor_formatter(lambda value, _: "")
    axes.set_ylabel("loss", size=15)
    _legend(axes, "upper right", several)


def _draw_accuracy(axes: "Axes", runs: Sequence[RunLog], key: str) -> None:
    """Draws the accuracy of the runs on held-out samples; the legend has the last value."""
    for i, run in enumerate(runs):
        last = run.table("accuracy")["accuracy"][-1]
        label = f"{_plain(run.name) if len(runs) > 1 else 'last'}: {last:.2%}"
        _line(axes, run, key, "accuracy", i, label=label)
    axes.yaxis.set_major_formatter(lambda value, _: f"{100 * value:.4g}%")
    axes.set_ylabel("test accuracy", size=15)
    _legend(axes, "lower right", len(runs) > 1)


def _legend(axes: "Axes", corner: str, several: bool) -> None:
    """Draws a legend: for one run in the free corner `corner`, such as "upper left"; for several
    runs below the panel, since their names may be long."""
    beside = (0, -0.14) if several else None
    corner = "upper left" if several else corner
    axes.legend(fontsize=13, frameon=False, loc=corner, bbox_to_anchor=beside)


def _line(axes: "Axes", run: RunLog, key: str, quantity: str, i: int, **style: Any) -> None:
    table = run.table(quantity)
    xs, ys = table.get(key, ()), table.get(quantity, ())
    marker = "o" if len(xs) <= MARKED else ""
    axes.plot(
        xs,
        ys,
        color=COLOURS[i % len(COLOURS)],
        marker=marker,
        linewidth=2.2,
        **style,
    )


def _plain(text: str) -> str:
    """Returns text that matplotlib shows literally: $, which would start a formula, is escaped, and
    a space put before a leading _, which would hide a label. A long name is cut; a character that
    cannot be printed is shown as its escape."""
    return " " * text.startswith("_") + shown(text, LONGEST_NAME).replace("$", r"\$")


def read_logs(paths: Sequence[File]) -> list[RunLog]:
    """Returns the runs of several logs, named after their files, or paths if two have one name."""
    pairs = zip(paths, named(paths), strict=True)
    return [run for file, name in pairs for run in read_log(file, name)]


def read_log(file: File, name: str) -> list[RunLog]:
    """Returns the runs of a log that have a step or an epoch, numbered if --append has written
    several."""
    events = events_of(file)
    with refusing_others(f"{shown(file)} is not a log of nnmpi", REMEDY):
        parts = runs_of(events)
        both = zip(numbered(name, len(parts)), parts, strict=True)
        every = [_run(run[0], run)._replace(name=run_name) for run_name, run in both]
        runs = [run for run in every if run.table("loss")]
    if not runs:
        last = events[-1]["event"]
        raise ValueError(f"log {shown(file)} has no epoch yet: its last event is {last!r:.20}")
    return runs


def _run(start: Event, events: Sequence[Event]) -> RunLog:
    """Returns the numbers to draw of a run; its name is filled in later."""
    made = curves(events)
    steps = made.steps if made.has_few_epochs else []
    tables = map(_table, (made.epochs, steps, made.evaluations))
    return RunLog("", f"{start['model']} on {start['data']}", *tables)


def _table(rows: Sequence[Event]) -> Table:
    """Returns the numbers in events as columns, of keys of the last one; NaN if one lacks a
    number."""
    keys = [key for key in DRAWN if key in rows[-1]] if rows else []
    numbers = {key: np.fromiter((row.get(key) for row in rows), float) for key in keys}
    return {key: np.where(abs(a) <= LARGEST, a, np.nan) for key, a in numbers.items()}


# ---- the command


def parser() -> cli.Parser:
    """Returns the parser of the command line of `nnmpi.plot`."""
    about = "Draw loss and accuracy of one or several runs, from their logs."
    p = cli.Parser("nnmpi.plot", description=about)
    p.add_argument("logs", nargs="+", metavar="LOG", help="a file that --log has written")
    p.add_argument("--x", default="epochs", choices=[*AXES], help="(default epochs)")
    out = ".png, .svg or .pdf (default training.png)"
    p.add_argument("-o", "--out", default="training.png", metavar="FILE", help=out)
    more = "also learning rate, norm of the gradient, and samples or tokens a second"
    p.add_argument("--all", action="store_true", help=more)
    return p


def command(given: argparse.Namespace) -> int:
    """Draws the runs in the logs that the command line names, and returns the exit status."""
    plot(given.logs, given.x, given.out, given.all)
    return 0


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command and returns its exit status."""
    return cli.main(parser(), command, arguments)
