"""The picture of benchmarks/language.py: weak scaling, beside ranks that send nothing."""

from collections.abc import Sequence
from typing import Any

from lib import panels
from lib.panels import Panel
from lib.timing import Row


def _weak(axes: Any, rows: Sequence[Row]) -> None:
    places = range(len(rows))
    axes.bar(places, [row["ratio"] for row in rows], panels.WIDTH, color=panels.BLUE)
    names = [f"{row['case']}, {row['dtype']}\n{row['layout']}" for row in rows]
    axes.set_xticks(places, names, size=9, rotation=90)
    panels.title(axes, "samples a second over one rank")


PANELS = [Panel("weak", lambda row: "ratio" in row, _weak)]
