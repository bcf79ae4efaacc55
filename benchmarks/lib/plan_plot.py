"""The plot of benchmarks/plan.py: predicted against measured seconds, a point a layout."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from lib import panels
from lib.timing import Row

COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9")
BAND = 1.12


def read(file: str) -> list[Row]:
    """The rows of a file of the benchmark."""
    rows: list[Row] = json.loads(Path(file).read_text(encoding="utf-8"))
    return rows


def draw(rows: Sequence[Row], path: str) -> None:
    """One panel; on the line a prediction is exact, in the band it is off by 12% at most."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(panels.ACROSS, 6.6), layout="constrained")
    axes: Any = figure.subplots()
    settings = [*dict.fromkeys(row["setting"] for row in rows)]
    for setting, colour in zip(settings, COLOURS, strict=False):
        own = [row for row in rows if row["setting"] == setting]
        points = ([1e3 * row[name] for row in own] for name in ("seconds", "predicted_seconds"))
        axes.scatter(*points, s=34, color=colour, label=setting, alpha=0.75, zorder=3)
    both = [1e3 * row[name] for row in rows for name in ("seconds", "predicted_seconds")]
    ends = [0.8 * min(both), 1.25 * max(both)]
    axes.plot(ends, ends, color="black", linewidth=1.5, zorder=2)
    low, high = ([x * by for x in ends] for by in (1 / BAND, BAND))
    axes.fill_between(ends, low, high, color="#eeeeee", zorder=1)
    axes.set(xscale="log", yscale="log", xlim=ends, ylim=ends)
    ticks = [digit * 10**k for k in range(-2, 6) for digit in (1, 2, 5)]
    ticks = [x for x in ticks if ends[0] <= x <= ends[1]]
    for set_ticks in (axes.set_xticks, axes.set_yticks):
        set_ticks(ticks, [f"{x:g}" for x in ticks])
        set_ticks([], minor=True)
    axes.set_xlabel("measured ms of a step", size=12)
    axes.set_ylabel("predicted ms", size=12)
    axes.legend(frameon=False, fontsize=12, loc="upper left")
    panels.style(axes, "both")
    panels.title(axes, "Steps of layouts, predicted and measured; band: 12%")
    figure.savefig(path, dpi=panels.DPI)
