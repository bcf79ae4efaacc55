"""The plot of benchmarks/pipeline.py: speed-up, schedules and memory, measured beside expected."""

from collections.abc import Sequence
from typing import Any

from lib.panels import Panel, bars, title
from lib.timing import Row

COLORS = {"mlp": "#0072b2", "cnn": "#d55e00", "mnist-cnn": "#009e73"}


def _speed_up(axes: Any, rows: Sequence[Row]) -> None:
    """A line per model over the micro-batches, with quartiles, and the ideal."""
    counts = sorted({row["micro_batches"] for row in rows})
    ideal = {row["micro_batches"]: row["ideal_ratio"] for row in rows}
    axes.plot(counts, [ideal[m] for m in counts], color="black", label="ideal, 2m / (m+1)")
    for case in dict.fromkeys(row["case"] for row in rows):
        found = [row for row in rows if row["case"] == case]
        x, y = [r["micro_batches"] for r in found], [r["ratio"] for r in found]
        low = [r["ratio"] - r["ratio_low"] for r in found]
        high = [r["ratio_high"] - r["ratio"] for r in found]
        axes.errorbar(x, y, (low, high), color=COLORS[case], marker="o", capsize=3, label=case)
        if not found[0]["balanced"]:
            simulated = [r["predicted_ratio"] for r in found]
            name = f"{case}, simulated"
            axes.plot(x, simulated, color=COLORS[case], linestyle=":", label=name)
    axes.set_xscale("log", base=2)
    axes.set_xticks(counts, [str(m) for m in counts])
    axes.minorticks_off()
    axes.set_xlabel("micro-batches", size=11)
    axes.set_ylim(0, 2.1)
    axes.legend(frameon=False, fontsize=11, loc="lower right")
    title(axes, "Speed-up of 2 ranks over 1")


def _schedules(axes: Any, rows: Sequence[Row]) -> None:
    bars(axes, rows, "ratio", "predicted_ratio", "{:.2f}")
    axes.set_xticks(range(len(rows)), [row["schedule"] for row in rows], rotation=20)
    title(axes, f"Speed-up, {rows[0]['case']}, {rows[0]['micro_batches']} micro-batches")


def _pairs(axes: Any, rows: Sequence[Row]) -> None:
    bars(axes, rows, "ratio", "predicted_ratio", "{:.2f}")
    names = [f"{r['schedule']}\nover {r['against']}\nm = {r['micro_batches']}" for r in rows]
    axes.set_xticks(range(len(rows)), names)
    title(axes, f"Speed beside another schedule, {rows[0]['case']}")


def _memory(axes: Any, all_rows: Sequence[Row]) -> None:
    rows = [row | {key: row[key] / 1e6 for key in ("bytes", "predicted_bytes")} for row in all_rows]
    bars(axes, rows, "bytes", "predicted_bytes", "{:.1f}")
    axes.set_xticks(range(len(rows)), [row["schedule"] for row in rows])
    title(axes, f"MB of activations, stage 0, {rows[0]['micro_batches']} micro-batches")


PANELS = (
    Panel("speed-up", lambda row: row["subject"] == "pipeline", _speed_up),
    Panel("schedules", lambda row: "bubble" in row, _schedules),
    Panel("schedules", lambda row: "goal" in row, _pairs),
    Panel("memory", lambda row: True, _memory),
)
