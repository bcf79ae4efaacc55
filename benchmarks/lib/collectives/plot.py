"""The plot of benchmarks/collectives.py, from its rows: time, and time over MPI's, by size."""

from collections.abc import Sequence
from typing import Any, NamedTuple

from lib import panels
from lib.collectives.timing import REFERENCE
from lib.timing import Row, size_name


class Style(NamedTuple):
    """The style of one line."""

    color: str
    marker: str
    width: float = 2.2


STYLES = {
    REFERENCE: Style("#000000", "", 2.8),
    "ring": Style("#0072b2", "o"),
    "tree": Style("#d55e00", "s"),
    "ps": Style("#cc79a7", "D"),
    "p2p": Style("#56b4e9", "v"),
    "doubling": Style("#b8860b", "^"),
    "halving": Style("#3b3fa8", "x"),
    "hierarchical": Style("#8c4a2f", "P"),
    "mpi": Style("#8a8a8a", "."),
    "shared": Style("#009e73", "o"),
    "auto": Style("#c9a800", "", 5.0),
    "window": Style("#00563f", "*"),
    "gloo": Style("#7b2d8b", "d"),
}
OTHER = Style("#7f3c00", "h")  # of an algorithm of the user's
LINES = (REFERENCE, "ring", "tree", "halving", "auto", "window")
"""Those that are drawn unless --lines names others: six can be told apart."""
APART = "gloo"  # so slow that it would flatten all others: drawn below them
MAX_TICKS = 6  # labelled sizes


def draw(rows: Sequence[Row], lines: Sequence[str], where: str, path: str) -> None:
    """Seconds, and below them the ratio to the MPI library's all-reduce: one column, for phones."""
    from matplotlib.figure import Figure

    sums = [row for row in rows if row["case"] == "all_reduce"]
    measured = {row["algorithm"] for row in sums}
    shown = [name for name in lines if name in measured and name != APART]
    is_apart = APART in measured
    figure = Figure(figsize=(panels.ACROSS, 1.6 + 4.2 * (2 + is_apart)), layout="constrained")
    top, below, *others = figure.subplots(2 + is_apart, squeeze=False)[:, 0]
    note = "Bands: half of the rounds; dashed: predicted from alpha and beta"
    panels.heading(figure, f"{where}\n{note}")
    for name in shown:
        of_name = [row for row in sums if row["algorithm"] == name]
        _line(top, of_name, "seconds")
        _line(below, of_name, "ratio")
        _predicted(top, of_name)
    for network in (row for row in rows if row["case"] == "network"):
        _link(top, network, sums)
    _axes(top, sums, "Time of an all-reduce")
    _seconds(top)
    _axes(below, sums, f"Time over that of {REFERENCE}")
    _ratios(below)
    if is_apart:
        _line(others[0], [row for row in sums if row["algorithm"] == APART], "ratio")
        _axes(others[0], sums, f"The same of {APART}")
        _ratios(others[0])
    handles, names = top.get_legend_handles_labels()
    figure.legend(handles, names, loc="outside lower left", ncols=3, frameon=False, fontsize=13)
    figure.savefig(path, dpi=panels.DPI)


def _line(axes: Any, rows: Sequence[Row], key: str) -> None:
    """A line with the quartiles over rounds as a band."""
    name = rows[0]["algorithm"]
    s, sizes = STYLES.get(name, OTHER), [row["bytes"] for row in rows]
    behind = name == "auto"  # a broad, light line under that of its choice
    axes.plot(
        sizes,
        [row[key] for row in rows],
        color=s.color,
        marker=s.marker,
        markersize=7,
        linewidth=s.width,
        alpha=0.5 if behind else 1,
        zorder=2 if behind else 3,
        label="comm.shared" if name == "window" else name,
    )
    if f"{key}_low" in rows[0]:
        ends = ([row[f"{key}_{end}"] for row in rows] for end in ("low", "high"))
        axes.fill_between(sizes, *ends, color=s.color, alpha=0.18, linewidth=0, zorder=1)


def _predicted(axes: Any, rows: Sequence[Row]) -> None:
    there = [row for row in rows if "predicted_seconds" in row]
    if there:
        color = STYLES.get(there[0]["algorithm"], OTHER).color
        times = [row["predicted_seconds"] for row in there]
        axes.plot([row["bytes"] for row in there], times, "--", color=color, linewidth=1.3)


def _link(axes: Any, network: Row, sums: Sequence[Row]) -> None:
    """The time that 2 (p - 1) / p times the buffer takes at the rate of the link, and no less."""
    p, beta = network["ranks"], network["beta"]
    sizes = sorted({row["bytes"] for row in sums})
    times = [2 * (p - 1) / p * n * beta for n in sizes]
    label = f"link: {1e-9 / beta:.3g} GB/s"
    axes.plot(sizes, times, ":", color="#777777", linewidth=2.4, label=label)
    axes.set_ylim(bottom=0.7 * min(row["seconds"] for row in sums))


def _axes(axes: Any, rows: Sequence[Row], title: str) -> None:
    """Ticks at measured sizes and a light grid."""
    from matplotlib.ticker import NullLocator

    sizes = sorted({row["bytes"] for row in rows})
    some = sizes[:: -(-len(sizes) // MAX_TICKS)]
    axes.set(xscale="log", yscale="log")
    axes.set_xticks(some, [size_name(n) for n in some])
    axes.xaxis.set_minor_locator(NullLocator())
    panels.style(axes, "both")
    panels.title(axes, title)


def _seconds(axes: Any) -> None:
    from matplotlib.ticker import FuncFormatter, NullFormatter

    axes.yaxis.set_major_formatter(FuncFormatter(lambda y, _: _time(y)))
    axes.yaxis.set_minor_formatter(NullFormatter())


def _time(seconds: float) -> str:
    for unit, one in (("s", 1.0), ("ms", 1e-3), ("\N{MICRO SIGN}s", 1e-6)):
        if seconds >= 0.999 * one:
            return f"{seconds / one:g} {unit}"
    return f"{seconds * 1e9:g} ns"


def _ratios(axes: Any) -> None:
    """Ticks at 1, 2, 5, 10, 20, ... and a line at 1."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

    axes.axhline(1, color="black", linewidth=1, zorder=1)
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda y, _: f"{y:g}"))
    axes.yaxis.set_minor_locator(NullLocator())
