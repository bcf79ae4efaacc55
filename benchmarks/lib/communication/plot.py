"""The plot of benchmarks/communication.py: losses over bytes, and over seconds on a network."""

import statistics
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

from lib import panels
from lib.timing import Row

COLORS = {
    "data parallelism": "#222222",
    "local, H = 10": "#56b4e9",
    "local, H = 30": "#0072b2",
    "streaming, H = 30": "#5e3c99",
    "gossip, ring": "#e69f00",
    "gossip, exponential": "#b35806",
    "top-k, 1%": "#009e73",
    "sign": "#cc79a7",
    "PowerSGD, rank 4": "#d73027",
    "int8": "#8a8a8a",
}
APART = 0.045  # of the height of a panel, between two labels


class Curve(NamedTuple):
    """Mean losses over seeds after some steps."""

    name: str
    steps: list[int]
    losses: list[float]


def draw(rows: Sequence[Row], path: str) -> None:
    """A panel over bytes, and below it one over seconds where there are rows of a network."""
    from matplotlib.figure import Figure

    of_losses = [row for row in rows if row["section"] == "loss"]
    case, replicas = of_losses[0]["case"], of_losses[0]["ranks"]
    of_losses = [r for r in of_losses if (r["case"], r["ranks"]) == (case, replicas)]
    of_network = [r for r in rows if r["section"] == "network" and r["ranks"] == replicas]
    seconds = {r["algorithm"]: r["seconds"] for r in of_network if r["case"] == case}
    sent = {row["algorithm"]: row["bytes"] / 1e6 for row in of_losses}
    curves = curves_of(of_losses)
    seeds = len({row["seed"] for row in of_losses})
    first = of_losses[0]
    drawn = [(sent, "Test loss over MB that a replica has sent", "MB")]
    if seconds:
        rate = of_network[0]["bits_per_second"] / 1e6
        drawn.append((seconds, f"Test loss over seconds, links of {rate:g} Mbit/s", "s"))
    figure = Figure(figsize=(panels.ACROSS, 0.6 + 5.2 * len(drawn)), layout="constrained")
    heading = f"{case}, {replicas} replicas, {first['steps']} steps; means of {seeds} seeds"
    panels.heading(figure, heading)
    for axes, (step, title, unit) in zip(
        figure.subplots(len(drawn), squeeze=False)[:, 0], drawn, strict=True
    ):
        panel(axes, curves, step, unit)
        panels.title(axes, title)
    figure.savefig(path, dpi=panels.DPI)


def curves_of(rows: Sequence[Row]) -> list[Curve]:
    """The mean curve of each way that has all seeds."""
    found, seeds = [], {row["seed"] for row in rows}
    for name in dict.fromkeys(row["algorithm"] for row in rows):
        of = [row for row in rows if row["algorithm"] == name]
        if len(of) < len(seeds):
            continue
        steps = [int(key.removeprefix("loss_")) for key in of[0] if key.startswith("loss_")]
        means = [statistics.mean(row[f"loss_{step}"] for row in of) for step in steps]
        found.append(Curve(name, steps, means))
    return found


def panel(axes: Any, curves: Sequence[Curve], step: Mapping[str, float], unit: str) -> None:
    """Curves over what a step takes, on a logarithmic axis, each with its name at its end."""
    ends = []
    for curve in curves:
        if curve.name in step:
            x = [step[curve.name] * n for n in curve.steps]
            color = COLORS[curve.name]
            axes.plot(x, curve.losses, color=color, linewidth=2, marker="o", markersize=4)
            ends.append((curve.name, x[-1], curve.losses[-1]))
    axes.set_xscale("log")
    low, high = axes.get_xlim()
    axes.set_xlim(low, high * (high / low) ** 0.5)  # room for the names
    bottom, top = axes.get_ylim()
    apart = APART * (top - bottom)
    at_heights = heights([y for *_, y in ends], apart)
    axes.set_ylim(min([bottom, *(y - apart for y in at_heights)]), top)
    for (name, x, y), at in zip(ends, at_heights, strict=True):
        axes.annotate(
            f"{name}: {y:.3f}",
            (x, y),
            (high * 1.15, at),
            va="center",
            size=11,
            color=COLORS[name],
            arrowprops={"arrowstyle": "-", "color": COLORS[name], "linewidth": 0.6, "alpha": 0.6},
        )
    axes.xaxis.set_major_formatter(lambda x, _: f"{x:,.0f} {unit}" if x <= high else "")
    axes.xaxis.set_minor_formatter("")
    panels.style(axes)


def heights(values: Sequence[float], apart: float) -> list[float]:
    """Heights near the values, of which no two are closer than `apart`; in the same order."""
    order = sorted(range(len(values)), key=values.__getitem__)
    found = list(values)
    for below, i in pairwise(order):
        found[i] = max(found[i], found[below] + apart)
    shift = statistics.mean(values) - statistics.mean(found)
    return [y + shift for y in found]
