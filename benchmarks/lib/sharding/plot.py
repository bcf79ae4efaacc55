"""The plot of benchmarks/sharding.py: memory, bytes and time, measured beside formulas."""

from collections.abc import Sequence
from typing import Any

from lib import panels
from lib.panels import BLUE, Panel, bars, title
from lib.timing import Row


def _names(axes: Any, rows: Sequence[Row]) -> None:
    words = [
        f"{row['layout'].replace(', ring', '')}, m {row['micro_batches']}".replace(", m 1", "")
        for row in rows
    ]
    axes.set_xticks(range(len(rows)), words, rotation=60, ha="right", size=11)


def _memory(axes: Any, rows: Sequence[Row]) -> None:
    bars(axes, rows, "per_parameter", "predicted_per_parameter", "{:.1f}", "formula")
    _names(axes, rows)
    title(axes, "Bytes a parameter on a rank")


def _bytes(axes: Any, rows: Sequence[Row]) -> None:
    bars(axes, rows, "units", "predicted_units", "{:.1f}", "formula")
    _names(axes, rows)
    title(axes, f"Units sent in a step, {rows[0]['ranks']} ranks")


def _time(axes: Any, rows: Sequence[Row]) -> None:
    """Ratios with quartiles, and a line at 1: data parallelism."""
    low = [row["ratio"] - row["ratio_low"] for row in rows]
    high = [row["ratio_high"] - row["ratio"] for row in rows]
    ratios = [row["ratio"] for row in rows]
    axes.bar(range(len(rows)), ratios, panels.WIDTH, yerr=(low, high), color=BLUE, capsize=3)
    axes.axhline(1, color="black", linewidth=1)
    for x, row in enumerate(rows):
        near = {"textcoords": "offset points", "ha": "center", "size": 11, "weight": "bold"}
        axes.annotate(f"{row['ratio']:.2f}", (x, 0), (0, 5), color="white", rotation=90, **near)
    _names(axes, rows)
    title(axes, "Time of a step over dp on as many ranks")


PANELS = (
    Panel("memory", lambda row: row["ranks"] > 1, _memory),
    Panel("bytes", lambda row: "units" in row and row["ranks"] == 2, _bytes),
    Panel("time", lambda row: "ratio" in row, _time),
)
