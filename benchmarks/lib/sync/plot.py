"""The plot of benchmarks/sync.py: throughput relative to BSP, and staleness."""

from collections.abc import Sequence
from typing import Any

from lib import panels
from lib.timing import Row

COLORS = {
    "bsp": "#0072b2",
    "all-reduce": "#8a8a8a",
    "ssp 1": "#f5b78a",
    "ssp 3": "#e8853d",
    "ssp 10": "#b34a00",
    "asp": "#009e73",
}
WIDTH = 0.86  # of a group of bars


def draw(rows: Sequence[Row], path: str) -> None:
    """Two panels; one group per case, one colour per synchronisation mode."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(13.3, 7.5), layout="constrained")
    above, below = figure.subplots(2, height_ratios=(5, 4))
    first = rows[0]
    where = f"{first['ranks'] - 1} workers and a server on {first['cores']} cores, {first['cpu']}"
    spread = f"medians of {first['repeats']} runs, thin lines from least to most"
    panels.heading(figure, f"{where}; {spread}")
    _ratios(above, rows)
    _staleness(below, rows)
    figure.savefig(path, dpi=130)


def _ratios(axes: Any, rows: Sequence[Row]) -> None:
    """Bars, with the range over runs, and a line across each at the theoretical value."""
    from matplotlib.patches import Patch

    for row, x, width in _places(rows):
        ends = row["ratio_least"], row["ratio_most"]
        axes.bar(x, row["ratio"], 0.94 * width, color=COLORS[row["subject"]])
        axes.vlines(x, *ends, color="#222222", linewidth=1.2)
        top = max(*ends, row["ratio_in_theory"])
        _label(axes, x, top, f"{row['ratio']:.2f}")
    theory = None
    for row, x, width in _places(rows):
        y = row["ratio_in_theory"]
        for color, thickness in (("white", 5), ("black", 2.4)):
            theory = axes.hlines(y, x - width / 2, x + width / 2, color=color, linewidth=thickness)
    _groups(axes, rows, "Samples per second, over those of BSP with a server")
    tops = [max(row["ratio_most"], row["ratio_in_theory"]) for row in rows]
    axes.set_ylim(0, 1.32 * max(tops))
    names = dict.fromkeys(row["subject"] for row in rows)
    handles = [*(Patch(color=COLORS[name]) for name in names), theory]
    labels = [*names, "in theory"]
    axes.legend(handles, labels, loc="upper left", ncols=len(labels), frameon=False, fontsize=12)


def _staleness(axes: Any, rows: Sequence[Row]) -> None:
    for row, x, width in _places(rows):
        axes.bar(x, row["mean_staleness"], 0.94 * width, color=COLORS[row["subject"]])
        _label(axes, x, row["mean_staleness"], f"{row['mean_staleness']:.1f}", 10)
    axes.set_ylim(0, 1.2 * max(0.1, *(row["mean_staleness"] for row in rows)))
    _groups(axes, rows, "Mean staleness of a gradient", described=False)


def _label(axes: Any, x: float, y: float, text: str, size: float = 11) -> None:
    axes.annotate(text, (x, y), (0, 4), textcoords="offset points", ha="center", size=size)


def _groups(axes: Any, rows: Sequence[Row], title: str, described: bool = True) -> None:
    """The cases below their groups, and the title."""
    cases = {row["case"]: row["straggler"] for row in rows}
    names = [f"{case}: {text}" if described else case for case, text in cases.items()]
    axes.set_xticks(range(len(cases)), names, size=12)
    panels.style(axes)
    panels.title(axes, title)


def _places(rows: Sequence[Row]) -> list[tuple[Row, float, float]]:
    """Each row with the position and the width of its bar."""
    found = []
    for i, case in enumerate(dict.fromkeys(row["case"] for row in rows)):
        group = [row for row in rows if row["case"] == case]
        width = WIDTH / max(len(group), 3)
        for j, row in enumerate(group):
            found.append((row, i + (j - (len(group) - 1) / 2) * width, width))
    return found
