"""The plot of benchmarks/sync.py: throughput relative to BSP, staleness and accuracy."""

from collections.abc import Sequence
from typing import Any

from timing import Row

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
    """Three panels; one group of bars per case, one colour per synchronisation mode."""
    from matplotlib.figure import Figure
    from matplotlib.patches import Patch

    figure = Figure(figsize=(11, 8.4), layout="constrained")
    above, *below = figure.subplot_mosaic("AA;BC", height_ratios=(4, 3)).values()
    first = rows[0]
    where = f"{first['ranks'] - 1} workers and a server on {first['cores']} cores, {first['cpu']}"
    figure.suptitle(where, x=0.01, ha="left", size=9, color="#555555")
    _groups(above, rows, "ratio", "{:.2f}", "Samples per second relative to BSP with a server")
    _theory(above, rows)
    _groups(below[0], rows, "mean_staleness", "{:.1f}", "Mean staleness of a gradient")
    _groups(below[1], rows, "accuracy", "{:.1%}", "Accuracy after the same number of samples")
    least = min(row["accuracy"] for row in rows)
    below[1].set_ylim(max(0.0, 1 - 2.2 * (1 - least)), 1)
    below[1].yaxis.set_major_formatter("{x:.0%}")
    names = dict.fromkeys(row["subject"] for row in rows)
    handles = [Patch(color=COLORS[name], label=name) for name in names]
    handles += above.get_legend_handles_labels()[0]
    above.legend(handles=handles, loc="upper left", ncols=len(handles), frameon=False, fontsize=9)
    figure.savefig(path, dpi=150)


def _groups(axes: Any, rows: Sequence[Row], key: str, form: str, title: str) -> None:
    for row, x, width in _places(rows):
        axes.bar(x, row[key], 0.94 * width, color=COLORS[row["subject"]])
        label = form.format(row[key])
        small = {"ha": "center", "size": 8, "rotation": 90 if len(label) > 4 else 0}
        top = max(row[key], *_marks(row)) if key == "ratio" else row[key]
        axes.annotate(label, (x, top), (0, 4), textcoords="offset points", **small)
    cases = {row["case"]: row["straggler"] for row in rows}
    names = [f"{case}\n{text}" if key == "ratio" else case for case, text in cases.items()]
    axes.set_xticks(range(len(cases)), names, size=9)
    axes.set_ylim(0, 1.22 * max(*(row[key] for row in rows), 0.1))
    axes.tick_params(length=0, labelsize=9)
    axes.grid(axis="y", color="#e4e4e4", linewidth=0.8)
    axes.set_axisbelow(True)
    axes.spines[:].set_visible(False)
    axes.set_title(title, loc="left", size=11, weight="bold")


def _places(rows: Sequence[Row]) -> list[tuple[Row, float, float]]:
    """Each row with the position and the width of its bar."""
    found = []
    for i, case in enumerate(dict.fromkeys(row["case"] for row in rows)):
        group = [row for row in rows if row["case"] == case]
        width = WIDTH / max(len(group), 3)
        for j, row in enumerate(group):
            found.append((row, i + (j - (len(group) - 1) / 2) * width, width))
    return found


def _marks(row: Row) -> dict[float, str]:
    """The heights to be marked at the bar of a ratio, with their labels."""
    goal = {row["goal"]: "goal"} if "goal" in row else {}
    return {row["ratio_in_theory"]: "in theory", **goal}


def _theory(axes: Any, rows: Sequence[Row]) -> None:
    """A black line across each bar at the theoretical value, a dotted red one at the goal."""
    labelled = set()
    for row, x, width in _places(rows):
        for y, name in _marks(row).items():
            color, style = ("#d4002a", (0, (1.5, 1))) if name == "goal" else ("black", "-")
            ends, label = (x - width / 2, x + width / 2), None if name in labelled else name
            axes.plot(ends, (y, y), color=color, linestyle=style, linewidth=2, label=label)
            labelled.add(name)
