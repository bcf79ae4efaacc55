"""The plot of benchmarks/pipeline.py: speed-up, schedules and memory, measured beside expected."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from timing import Row

COLORS = {"mlp": "#0072b2", "cnn": "#d55e00", "mnist-cnn": "#009e73"}
BLUE, INK = "#0072b2", "#555555"
WIDTH = 0.6  # of a bar


class Panel(NamedTuple):
    """What is drawn of a section, and of which of its rows."""

    section: str
    shows: Callable[[Row], bool]
    draw: Callable[[Any, Sequence[Row]], None]


def draw(rows: Sequence[Row], path: str) -> None:
    """The panels of the sections that were run; nothing is in the figure if there are none."""
    from matplotlib.figure import Figure

    parts = [(p, [r for r in rows if r["section"] == p.section and p.shows(r)]) for p in PANELS]
    parts = [(panel, found) for panel, found in parts if found]
    figure = Figure(figsize=(1 + 4.6 * max(len(parts), 1), 4.8), layout="constrained")
    if rows:
        where = f"2 ranks, one thread each, {rows[0]['cores']} cores, {rows[0]['cpu']}"
        figure.suptitle(where, x=0.01, ha="left", size=9, color=INK)
    for i, (panel, found) in enumerate(parts):
        axes = figure.add_subplot(1, len(parts), i + 1)
        panel.draw(axes, found)
        axes.grid(axis="y", color="#e4e4e4", linewidth=0.8)
        axes.set_axisbelow(True)
        axes.spines[:].set_visible(False)
        axes.tick_params(length=0, labelsize=9)
    figure.savefig(path, dpi=150)


def _title(axes: Any, text: str) -> None:
    axes.set_title(text, loc="left", size=11, weight="bold")


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
    axes.set_xlabel("micro-batches", size=9)
    axes.set_ylim(0, 2.1)
    axes.legend(frameon=False, fontsize=8, loc="lower right")
    _title(axes, "Speed-up of 2 ranks over 1")


def _bars(axes: Any, rows: Sequence[Row], measured: str, expected: str, form: str) -> None:
    """A bar for each measured figure, with a line across it at the simulated one."""
    near = {"textcoords": "offset points", "ha": "center", "size": 8}
    for x, row in enumerate(rows):
        axes.bar(x, row[measured], WIDTH, color=BLUE, label="" if x else "measured")
        ends = (x - WIDTH / 2 - 0.08, x + WIDTH / 2 + 0.08)
        line = {"color": "black", "linewidth": 2, "label": "" if x else "simulated"}
        axes.plot(ends, [row[expected]] * 2, **line)
        top = max(row[measured], row[expected])
        axes.annotate(form.format(row[expected]), (x, top), (0, 4), **near)
        inside = {**near, "color": "white", "weight": "bold"}
        axes.annotate(form.format(row[measured]), (x, 0), (0, 5), **inside)
    axes.set_ylim(0, 1.3 * max(max(row[measured], row[expected]) for row in rows))
    axes.legend(frameon=False, fontsize=8, loc="upper left", ncols=2)


def _schedules(axes: Any, rows: Sequence[Row]) -> None:
    _bars(axes, rows, "ratio", "predicted_ratio", "{:.2f}")
    axes.set_xticks(range(len(rows)), [row["schedule"] for row in rows], rotation=20)
    _title(axes, f"Speed-up, {rows[0]['case']}, {rows[0]['micro_batches']} micro-batches")


def _pairs(axes: Any, rows: Sequence[Row]) -> None:
    _bars(axes, rows, "ratio", "predicted_ratio", "{:.2f}")
    names = [f"{r['schedule']}\nover {r['against']}\nm = {r['micro_batches']}" for r in rows]
    axes.set_xticks(range(len(rows)), names)
    _title(axes, f"Speed beside another schedule, {rows[0]['case']}")


def _memory(axes: Any, all_rows: Sequence[Row]) -> None:
    rows = [row | {key: row[key] / 1e6 for key in ("bytes", "predicted_bytes")} for row in all_rows]
    _bars(axes, rows, "bytes", "predicted_bytes", "{:.1f}")
    axes.set_xticks(range(len(rows)), [row["schedule"] for row in rows])
    _title(axes, f"MB of activations, stage 0, {rows[0]['micro_batches']} micro-batches")


PANELS = (
    Panel("speed-up", lambda row: row["subject"] == "pipeline", _speed_up),
    Panel("schedules", lambda row: "bubble" in row, _schedules),
    Panel("schedules", lambda row: "goal" in row, _pairs),
    Panel("memory", lambda row: True, _memory),
)
