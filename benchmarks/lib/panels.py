"""The style of plots: a width and letters that fit a phone, and panels one below the other.

Letters of 12 points in a figure 7 inches wide are still legible on a screen 360 pixels wide.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from lib.timing import Row

BLUE, INK = "#0072b2", "#555555"
ACROSS = 7.0  # inches of a figure
DPI = 150
WIDTH = 0.74  # of a bar


class Panel(NamedTuple):
    """What is drawn of a section, and of which of its rows."""

    section: str
    shows: Callable[[Row], bool]
    draw: Callable[[Any, Sequence[Row]], None]


def draw(rows: Sequence[Row], path: str, panels: Sequence[Panel], ranks: str) -> None:
    """The panels of the sections that were run; nothing is in the figure if there are none."""
    from matplotlib.figure import Figure

    parts = [(p, [r for r in rows if r["section"] == p.section and p.shows(r)]) for p in panels]
    parts = [(panel, found) for panel, found in parts if found]
    figure = Figure(figsize=(ACROSS, 0.6 + 4.6 * max(len(parts), 1)), layout="constrained")
    if rows:
        where = f"{ranks}, one thread each, {rows[0]['cores']} cores, {rows[0]['cpu']}"
        heading(figure, where)
    for i, (panel, found) in enumerate(parts):
        axes = figure.add_subplot(len(parts), 1, i + 1)
        panel.draw(axes, found)
        style(axes)
    figure.savefig(path, dpi=DPI)


def heading(figure: Any, text: str) -> None:
    """What all panels have in common."""
    figure.suptitle(text, x=0.01, ha="left", size=12, color=INK)


def style(axes: Any, grid: str = "y") -> None:
    """A light grid, and neither frame nor ticks."""
    axes.grid(axis=grid, color="#e4e4e4", linewidth=0.8)
    axes.set_axisbelow(True)
    axes.spines[:].set_visible(False)
    axes.tick_params(which="both", length=0, labelsize=12)


def title(axes: Any, text: str) -> None:
    axes.set_title(text, loc="left", size=14, weight="bold")


def bars(
    axes: Any,
    rows: Sequence[Row],
    measured: str,
    expected: str,
    form: str,
    source: str = "simulated",
) -> None:
    """A bar for each measured figure, with a line across it at the expected one."""
    near = {"textcoords": "offset points", "ha": "center", "size": 11}
    for x, row in enumerate(rows):
        axes.bar(x, row[measured], WIDTH, color=BLUE, label="" if x else "measured")
        ends = (x - WIDTH / 2 - 0.08, x + WIDTH / 2 + 0.08)
        line = {"color": "black", "linewidth": 2, "label": "" if x else source}
        axes.plot(ends, [row[expected]] * 2, **line)
        top = max(row[measured], row[expected])
        axes.annotate(form.format(row[expected]), (x, top), (0, 4), **near)
        inside = {**near, "color": "white", "weight": "bold", "size": 9}
        axes.annotate(form.format(row[measured]), (x, 0), (0, 5), **inside)
    axes.set_ylim(0, 1.3 * max(max(row[measured], row[expected]) for row in rows))
    axes.legend(frameon=False, fontsize=12, loc="upper left", ncols=2)
