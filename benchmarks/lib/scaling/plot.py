"""The plot of benchmarks/scaling.py: samples per second on 1 and N ranks, a panel for each case.

Bars lie on their sides, so that their labels fit a phone.
"""

from collections.abc import Sequence
from itertools import cycle
from typing import Any

from lib import panels
from lib.timing import Row

COLORS = ("#0072b2", "#d55e00", "#56b4e9", "#cc79a7", "#009e73", "#b8860b")
GREY = "#8a8a8a"  # of PyTorch as users write it
WIDTH = 0.8  # of a group of bars
ORDER = ("one rank", "weak", "strong")
APART = "nnmpi apart"  # a line: ranks that train a model each, and sum nothing
NAMES = {"T+": "PyTorch T+", "DDP T+": "PyTorch T+", "T": "PyTorch T", "DDP T": "PyTorch T"}


def draw(rows: Sequence[Row], path: str) -> None:
    """Groups of bars for one rank, weak and strong scaling; one colour per subject."""
    from matplotlib.figure import Figure
    from matplotlib.patches import Patch

    cases = list(dict.fromkeys(row["case"] for row in rows))
    colors = _colors([row for row in rows if row["subject"] != APART])
    figure = Figure(figsize=(panels.ACROSS, 1.6 + 4.8 * len(cases)), layout="constrained")
    all_axes = figure.subplots(len(cases), squeeze=False)[:, 0]
    first = rows[0]
    where = f"{first['cpu']}, {first['cores']} cores, one thread a rank; on 2 ranks PyTorch is DDP"
    note = "White, on the left: times one rank; on the right: times PyTorch T+"
    panels.heading(figure, f"{where}\n{note}")
    line = None
    for axes, case in zip(all_axes, cases, strict=True):
        line = _panel(axes, [row for row in rows if row["case"] == case], colors) or line
    handles: list[Any] = [Patch(color=color) for color in colors.values()]
    names = list(colors)
    if line is not None:
        handles, names = [*handles, line], [*names, "ranks that train apart"]
    figure.legend(handles, names, loc="outside lower left", ncols=3, frameon=False, fontsize=12)
    figure.savefig(path, dpi=panels.DPI)


def _panel(axes: Any, rows: Sequence[Row], colors: dict[str, str]) -> Any:
    """One case; returns the line of ranks that train apart, if there is one."""
    bars, line = [row for row in rows if row["subject"] != APART], None
    for i, scaling in enumerate(ORDER):
        group = [row for row in bars if row["scaling"] == scaling]
        width = WIDTH / max(len(group), 3)
        for j, row in enumerate(group):
            _bar(axes, row, i + (j - (len(group) - 1) / 2) * width, width, colors)
    for row in (row for row in rows if row["subject"] == APART):
        at, height = ORDER.index(row["scaling"]), row["samples_per_second"]
        ends = at - WIDTH / 6, at + WIDTH / 2  # beside the first bar, whose label is above it
        line = axes.vlines(height, *ends, color="black", linewidth=2, linestyle="--", zorder=5)
    axes.set_xlim(0, 1.2 * max(row["samples_per_second"] for row in rows))
    axes.set_yticks(range(len(ORDER)), [_group(bars, scaling) for scaling in ORDER])
    axes.invert_yaxis()
    axes.xaxis.set_major_formatter("{x:,.0f}")
    panels.style(axes, "x")
    case, model = rows[0]["case"], rows[0]["model"]
    panels.title(axes, f"{case}, {model}: samples per second")
    return line


def _colors(rows: Sequence[Row]) -> dict[str, str]:
    """One colour per subject, repeated if necessary; PyTorch has the same with and without DDP."""
    names = dict.fromkeys(_name(row) for row in rows)
    free = cycle(COLORS)
    return {name: GREY if name == NAMES["T"] else next(free) for name in names}


def _name(row: Row) -> str:
    return NAMES.get(row["subject"], row["subject"])


def _group(rows: Sequence[Row], scaling: str) -> str:
    row = next(row for row in rows if row["scaling"] == scaling)
    ranks = f"{row['ranks']} ranks, {scaling}" if row["ranks"] > 1 else "1 rank"
    return f"{ranks}\nbatch {row['batch_size']}"


def _bar(axes: Any, row: Row, y: float, width: float, colors: dict[str, str]) -> None:
    """A bar with its quartiles and its height; inside it the ratios to PyTorch and to one rank."""
    rate = row["samples_per_second"]
    axes.barh(y, rate, 0.94 * width, color=colors[_name(row)])
    low = top = rate
    if "seconds_low" in row:
        low, top = (row["batch_size"] / row[f"seconds_{end}"] for end in ("high", "low"))
        axes.hlines(y, low, top, color="#222222", linewidth=1.4, zorder=4)
    near = {"textcoords": "offset points", "va": "center", "size": 12}
    above = {"zorder": 6, "bbox": {"color": "white", "pad": 0.5}}  # a line may cross it
    axes.annotate(f"{rate:,.0f}", (top, y), (4, 0), **near, **above)
    inside = {**near, "color": "white", "weight": "bold", "size": 11}
    if "ratio" in row:
        axes.annotate(f"{row['ratio']:.2f}", (low, y), (-4, 0), ha="right", **inside)
    if "over_one_rank" in row:
        axes.annotate(f"{row['over_one_rank']:.2f}", (0, y), (5, 0), **inside)
