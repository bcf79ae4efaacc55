"""The time of all algorithms over a range of sizes or of ranks: a table, JSON and a picture."""

from collections.abc import Sequence
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import NamedTuple

from nnmpi.collectives.price import Network
from nnmpi.sim import collective
from nnmpi.sim.network import as_text
from nnmpi.sim.show import Record, amount, columns, duration

MOST_RANKS = 4096  # a simulation of more takes too long for a table
LINES = {
    "ring": ("#0072b2", "-"),
    "tree": ("#009e73", "-"),
    "ps": ("#d55e00", "-"),
    "p2p": ("#56b4e9", "--"),
    "doubling": ("#cc79a7", "-"),
    "halving": ("#e69f00", "-"),
    "hierarchical": ("#6b4ba1", "-"),
    "p2p-whole": ("#8a8a8a", "--"),
}
"""Colour and style of an algorithm's line; ring and p2p cost the same on one level."""


BY = ("bytes", "ranks")


class Sweep(NamedTuple):
    """What is varied, and for each of its values the cost of each algorithm."""

    by: str  # of BY
    rows: list[list[Record]]

    @property
    def values(self) -> list[float]:
        """The numbers of bytes or of ranks."""
        return [row[0][self.by] for row in self.rows]

    def text(self, value: float) -> str:
        """A value with its unit."""
        return f"{value:,.0f} ranks" if self.by == "ranks" else amount(value)

    @property
    def heading(self) -> str:
        """What is not varied."""
        last = self.rows[-1][0]
        fixed = amount(last["bytes"]) if self.by == "ranks" else f"{last['ranks']:,} ranks"
        return f"{last['operation']}: {fixed}\n{as_text(last)}"


def sweep(
    by: str, operation: str, names: Sequence[str], most_ranks: int, nbytes: float, on: Network
) -> Sweep:
    """Simulates algorithms over numbers of bytes or of ranks, up to those given."""
    points: list[tuple[int, float]] = (
        [(p, nbytes) for p in _ranks(most_ranks)]
        if by == "ranks"
        else [(most_ranks, size) for size in _sizes(nbytes)]
    )
    return Sweep(
        by,
        [[collective.simulate(operation, name, p, m, on) for name in names] for p, m in points],
    )


def _sizes(nbytes: float) -> list[float]:
    """100, 300, 1,000, 3,000, ... up to so many bytes."""
    decades = [n * 10.0**k for k in range(2, 31) for n in (1, 3)]
    return [*(size for size in decades if size < nbytes), nbytes]


def _ranks(most: int) -> list[int]:
    """2, 3, 4, 6, 8, 12, ... up to so many ranks."""
    if not 2 <= most <= MOST_RANKS:
        raise ValueError(f"--sweep ranks needs --ranks from 2 to {MOST_RANKS}, got {most}")
    powers = {n * 2**k for n in (2, 3) for k in range(12)}
    return [*(p for p in sorted(powers) if p < most), most]


def table(s: Sweep) -> str:
    """A row for each value, a column for each algorithm; * marks the fastest."""
    lines = [["", *(f"{c['algorithm']} " for c in s.rows[0])]]
    for value, row in zip(s.values, s.rows, strict=True):
        times = [c["seconds"] for c in row]
        cells = [f"{duration(x)}{'*' if x == min(times) else ' '}" for x in times]
        lines.append([s.text(value), *cells])
    return f"{s.heading}\n{columns(lines)}{_fastest(s)}"


def _fastest(s: Sweep) -> str:
    """Which algorithm is the fastest up to which size; with ranks it changes back and forth."""
    if s.by == "ranks" or len(s.rows[0]) == 1:
        return ""
    best = [min(row, key=itemgetter("seconds"))["algorithm"] for row in s.rows]
    runs = groupby(zip(best, s.values, strict=True), key=lambda pair: pair[0])
    ends = [(name, [value for _, value in run][-1]) for name, run in runs]
    return "\n\nfastest: " + ", ".join(f"{name} up to {s.text(v)}" for name, v in ends)


def records(s: Sweep) -> list[Record]:
    """One flat object for each time."""
    keys = ("operation", "algorithm", "ranks", "bytes", "seconds")
    return [{key: c[key] for key in keys} for row in s.rows for c in row]


def plot(s: Sweep, path: Path) -> None:
    """Times over what is varied, both logarithmic; the legend has the order of the lines."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 5.6), layout="constrained")
    axes = figure.subplots()
    for of_one in sorted(zip(*s.rows, strict=True), key=lambda line: -line[-1]["seconds"]):
        name = of_one[0]["algorithm"]
        colour, style = LINES.get(name, ("black", "-"))
        times = [c["seconds"] for c in of_one]
        axes.plot(s.values, times, style, color=colour, linewidth=2.2, label=name)
    axes.set(xscale="log", yscale="log")
    axes.set_xticks(s.values[::2], [s.text(v) for v in s.values[::2]])
    axes.set_ylabel("seconds, simulated", size=13)
    axes.minorticks_off()
    axes.tick_params(labelsize=12)
    axes.grid(alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)
    axes.set_title(s.heading, loc="left", size=13)
    figure.legend(loc="outside right center", fontsize=13, frameon=False)
    figure.savefig(path, dpi=150)
