"""The plot of benchmarks/scaling.py: samples per second on 1 and N ranks, one panel per case."""

from collections.abc import Sequence
from itertools import cycle
from typing import Any

from timing import Row

COLORS = ("#0072b2", "#d55e00", "#56b4e9", "#cc79a7", "#009e73", "#b8860b")
GREY = "#8a8a8a"  # of PyTorch as users write it
WIDTH = 0.8  # of a group of bars
ORDER = ("one rank", "weak", "strong")
INDEPENDENT = "nnmpi apart"  # drawn as a line: it trains a separate model on each rank


def draw(rows: Sequence[Row], path: str) -> None:
    """Groups of bars for one rank, weak and strong scaling; one colour per subject."""
    from matplotlib.figure import Figure

    cases = list(dict.fromkeys(row["case"] for row in rows))
    figure = Figure(figsize=(2 + 5.5 * len(cases), 5.6), layout="constrained")
    panels = figure.subplots(1, len(cases), squeeze=False)[0]
    first = rows[0]
    where = f"{first['cpu']}, {first['cores']} cores, one thread per rank"
    figure.suptitle(f"Training, samples per second. {where}", x=0.01, ha="left", size=10)
    for axes, case in zip(panels, cases, strict=True):
        _panel(axes, case, [row for row in rows if row["case"] == case])
    figure.savefig(path, dpi=150)


def _panel(axes: Any, case: str, all_rows: Sequence[Row]) -> None:
    rows = [row for row in all_rows if row["subject"] != INDEPENDENT]
    colors = _colors(rows)
    for i, scaling in enumerate(ORDER):
        group = [row for row in rows if row["scaling"] == scaling]
        for j, row in enumerate(group):
            width = WIDTH / max(len(group), 3)
            _bar(axes, row, i + (j - (len(group) - 1) / 2) * width, width, colors)
    lines = [_line(axes, row) for row in all_rows if row["subject"] == INDEPENDENT]
    top = max(row["samples_per_second"] for row in all_rows)
    axes.set_ylim(0, 1.25 * top)
    axes.set_xticks(range(len(ORDER)), [_group(rows, scaling) for scaling in ORDER], size=9)
    axes.tick_params(length=0, labelsize=9)
    axes.yaxis.set_major_formatter("{x:,.0f}")
    axes.grid(axis="y", color="#e4e4e4", linewidth=0.8)
    axes.set_axisbelow(True)
    axes.spines[:].set_visible(False)
    axes.set_title(f"{case}: {rows[0]['model']}", loc="left", size=11, weight="bold")
    handles = [*map(_patch, colors.values()), *lines]
    names = [*colors, *("nnmpi, no all-reduce" for _ in lines)]
    axes.legend(handles, names, loc="upper left", ncols=2, frameon=False, fontsize=9)


def _colors(rows: Sequence[Row]) -> dict[str, str]:
    """One colour per subject, repeated if necessary; PyTorch has the same with and without DDP."""
    names = dict.fromkeys(_name(row) for row in rows)
    free = cycle(COLORS)
    return {name: GREY if name.endswith(" T") else next(free) for name in names}


def _name(row: Row) -> str:
    names = {"T*": "PyTorch T* (DDP)", "DDP T*": "PyTorch T* (DDP)", "DDP T": "PyTorch (DDP) T"}
    return names.get(row["subject"], row["subject"])


def _patch(color: str) -> Any:
    from matplotlib.patches import Patch

    return Patch(color=color)


def _group(rows: Sequence[Row], scaling: str) -> str:
    row = next(row for row in rows if row["scaling"] == scaling)
    ranks = f"{row['ranks']} ranks, {scaling}" if row["ranks"] > 1 else "1 rank"
    return f"{ranks}\nbatch {row['batch_size']}"


def _line(axes: Any, row: Row) -> Any:
    """A line at the throughput of independent ranks, in its group."""
    at, height = ORDER.index(row["scaling"]), row["samples_per_second"]
    text = f"{row['over_one_rank']:.2f} x "
    axes.annotate(text, (at - 0.48, height), ha="right", va="center", size=8)
    return axes.hlines(height, at - 0.47, at - 0.4, color="black", linewidth=2)


def _bar(axes: Any, row: Row, x: float, width: float, colors: dict[str, str]) -> None:
    """A bar; above it the ratio to PyTorch, inside it the ratio to one rank."""
    height = row["samples_per_second"]
    axes.bar(x, height, 0.94 * width, color=colors[_name(row)])
    label = f"{height:,.0f}"
    if "ratio" in row:
        label = f"{row['ratio']:.2f} x T*\n{label}"
    axes.annotate(label, (x, height), (0, 2), textcoords="offset points", ha="center", size=8)
    if "over_one_rank" in row:
        text = f"{row['over_one_rank']:.2f} x\n1 rank"
        style = {"ha": "center", "va": "top", "color": "white", "size": 8, "weight": "bold"}
        axes.annotate(text, (x, height), (0, -4), textcoords="offset points", **style)
