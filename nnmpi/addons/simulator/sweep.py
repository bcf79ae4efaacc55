"""Sweeps: a collective's time over sizes or ranks, as table, JSON or plot."""

from collections.abc import Sequence
from itertools import groupby
from operator import itemgetter
from pathlib import Path

from nnmpi.addons.simulator import collective
from nnmpi.addons.simulator.network import Record, as_text
from nnmpi.collectives.price import Network
from nnmpi.options.amounts import amount, duration
from nnmpi.options.tables import columns

MOST_RANKS = 4096  # to simulate more takes too long for a table
COLOURS = "#0072b2", "#009e73", "#d55e00", "#56b4e9", "#cc79a7", "#e69f00", "#8c564b", "#6b4ba1"
STYLES = "-", "--"
WIDEST, NARROWEST = 4.0, 1.2  # the first line is the widest: lines of equal cost show beside it

BY = ("bytes", "ranks")
"""The keys of records that a sweep may vary."""


def sweep(
    by: str, operation: str, names: Sequence[str], most_ranks: int, nbytes: float, on: Network
) -> list[list[Record]]:
    """Simulates a collective for increasing numbers of bytes or ranks, as `by` says, up to `nbytes`
    or `most_ranks`. Returns a row for each number: a record of each algorithm."""
    ranks = _ranks(most_ranks) if by == "ranks" else [most_ranks]
    sizes = _sizes(nbytes) if by == "bytes" else [nbytes]
    return [
        [collective.simulate(operation, name, p, m, on) for name in names]
        for p in ranks
        for m in sizes
    ]


def _text(by: str, r: Record) -> str:
    """Returns the number of bytes or ranks of a record as text, with its unit."""
    return f"{r['ranks']:,} ranks" if by == "ranks" else amount(r["bytes"])


def _heading(by: str, r: Record) -> str:
    """Returns a sweep's heading: operation, what is fixed, and network."""
    fixed = _text("ranks" if by == "bytes" else "bytes", r)
    return f"{r['operation']}: {fixed}\n{as_text(r)}"


def _sizes(nbytes: float) -> list[float]:
    """Returns the sizes to try, in bytes: 100, 300, 1,000, 3,000, ... up to `nbytes`."""
    decades = [n * 10.0**k for k in range(2, 31) for n in (1, 3)]
    return [*(size for size in decades if size < nbytes), nbytes]


def _ranks(most: int) -> list[int]:
    """Returns 2, 3, 4, 6, 8, 12, ... up to `most` ranks, at most MOST_RANKS."""
    if not 2 <= most <= MOST_RANKS:
        raise ValueError(f"--sweep ranks needs --ranks from 2 to {MOST_RANKS}, got {most}")
    powers = {n * 2**k for n in (2, 3) for k in range(12)}
    return [*(p for p in sorted(powers) if p < most), most]


def _least(row: list[Record]) -> float:
    """Returns the time of the fastest algorithm in a row."""
    seconds: list[float] = [cost["seconds"] for cost in row]
    return min(seconds)


def table(by: str, rows: list[list[Record]]) -> str:
    """Returns a table with a row for each number of bytes or ranks; * marks the fastest."""
    lines = [["", *(f"{c['algorithm']} " for c in rows[0])]]
    for row in rows:
        best = _least(row)
        cells = [f"{duration(c['seconds'])}{'*' if c['seconds'] == best else ' '}" for c in row]
        lines.append([_text(by, row[0]), *cells])
    return f"{_heading(by, rows[0][0])}\n{columns(lines)}{_fastest(by, rows)}"


def _fastest(by: str, rows: list[list[Record]]) -> str:
    """Returns a text that names the fastest algorithm for each range of sizes. It is empty for one
    algorithm, and if the number of ranks varies: then the fastest alternates."""
    if by == "ranks" or len(rows[0]) == 1:
        return ""
    best = [min(row, key=itemgetter("seconds")) for row in rows]
    ends = [[*run][-1] for _, run in groupby(best, key=itemgetter("algorithm"))]
    return "\n\nfastest: " + ", ".join(f"{c['algorithm']} up to {_text(by, c)}" for c in ends)


def records(rows: list[list[Record]]) -> list[Record]:
    """Returns all records of the sweep as one list."""
    keys = ("operation", "algorithm", "ranks", "bytes", "seconds")
    return [{key: c[key] for key in keys} for row in rows for c in row]


def plot(by: str, rows: list[list[Record]], path: Path) -> None:
    """Writes a plot of the times on log scales, with a dot where a line is the fastest. The legend
    has the order of the lines at their right ends."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 4.4), layout="constrained")
    axes = figure.subplots()
    values = [row[0][by] for row in rows]
    lines = [*zip(*rows, strict=True)]
    for k in sorted(range(len(lines)), key=lambda k: -lines[k][-1]["seconds"]):
        times = [c["seconds"] for c in lines[k]]
        style = STYLES[k // len(COLOURS) % len(STYLES)]
        width = WIDEST - (WIDEST - NARROWEST) * k / len(lines)
        colour, name = COLOURS[k % len(COLOURS)], lines[k][0]["algorithm"]
        axes.plot(values, times, style, color=colour, linewidth=width, label=name)
        best = [(row[0][by], t) for row, t in zip(rows, times, strict=True) if t == _least(row)]
        if best:
            axes.plot(*zip(*best, strict=True), "o", color=colour)
    axes.set(xscale="log", yscale="log")
    axes.set_xticks(values[::2], [_text(by, row[0]) for row in rows[::2]])
    axes.set_ylabel("seconds, simulated; a dot: the fastest", size=13)
    axes.minorticks_off()
    axes.tick_params(labelsize=12)
    axes.grid(alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)
    axes.set_title(_heading(by, rows[0][0]), loc="left", size=13)
    figure.legend(loc="outside right center", fontsize=13, frameon=False)
    figure.savefig(path, dpi=150)
