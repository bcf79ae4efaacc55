"""The picture of benchmarks/language.py: weak scaling, beside ranks that send nothing."""

from collections.abc import Sequence
from typing import Any

from lib import panels
from lib.panels import Panel
from lib.timing import Row


def _weak(axes: Any, rows: Sequence[Row]) -> None:
    places = range(len(rows))
    bars = axes.barh(places, [row["ratio"] for row in rows], panels.WIDTH, color=panels.BLUE)
    axes.bar_label(bars, fmt=" %.2f", size=9)
    names = [f"{row['case']}, {row['dtype']}: {row['layout']}" for row in rows]
    axes.set_yticks(places, names, size=8)
    axes.invert_yaxis()
    panels.title(axes, "times one rank")


PANELS = [Panel("weak", lambda row: "ratio" in row, _weak)]
