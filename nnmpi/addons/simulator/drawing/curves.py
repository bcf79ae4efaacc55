"""Draws curves as an SVG picture: shares from 0 to 1 on the y axis, over a logarithmic x axis."""

from collections.abc import Iterator, Mapping, Sequence
from math import log
from typing import NamedTuple

from nnmpi.addons.simulator.drawing.svg import IDLE, INK, MARGIN, QUIET, heading, page, text

COLOURS = ("#2f6fd0", "#d5700a", "#2a8f57")
WIDTH, HEIGHT, LEGEND = 420, 280, 26  # in pixels: letters fit a phone


class Point(NamedTuple):
    """A point (x, y) of a curve's line, and a dot at (x, dot) with its standard error."""

    x: float
    y: float
    dot: float
    error: float


def curves(lines: Mapping[str, Sequence[Point]], title: str, axis: str) -> str:
    """Returns an SVG of curves with their names; `axis` labels the x axis."""
    xs = [point.x for point in next(iter(lines.values()))]
    scale = WIDTH / (log(xs[-1] / xs[0]) or 1)
    at = {x: MARGIN + log(x / xs[0]) * scale for x in xs}
    parts, top = heading(title, 30, WIDTH + MARGIN)
    low = top + 10 + HEIGHT  # where a share of 0 is
    for k in range(6):
        y = low - HEIGHT * k / 5
        parts += [f'<path d="M{MARGIN} {y:g}h{WIDTH}" stroke="{IDLE}"/>']
        parts += [text(MARGIN - 10, y, f"{k / 5:.0%}", 13, QUIET, "end")]
    parts += [text(at[x], low + 16, f"{x:,}", 12, QUIET, "middle") for x in xs]
    parts += [text(MARGIN + WIDTH, low + 40, axis, 14, INK, "end")]
    for k, (name, points) in enumerate(lines.items()):
        colour = COLOURS[k % len(COLOURS)]
        parts += [*_curve(points, at, low, colour)]
        parts += [text(MARGIN, low + 40 + k * LEGEND, name, 15, colour, weight="bold")]
    return page(MARGIN + WIDTH + 40, low + 40 + len(lines) * LEGEND, parts)


def _curve(
    points: Sequence[Point], at: Mapping[float, float], low: float, colour: str
) -> Iterator[str]:
    """Yields the SVG of a curve: a line, and dots with error bars of two standard errors on either
    side. `at` maps the x of a point to the picture's; `low` is the height of y = 0."""
    path = "L".join(f"{at[point.x]:.1f} {low - HEIGHT * point.y:.1f}" for point in points)
    yield f'<path d="M{path}" stroke="{colour}" stroke-width="2" fill="none"/>'
    for point in points:
        x, y, bar = at[point.x], low - HEIGHT * point.dot, 2 * HEIGHT * point.error
        yield f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3.5" fill="{colour}"/>'
        yield f'<path d="M{x:.1f} {y - bar:.1f}v{2 * bar:.1f}" stroke="{colour}"/>'
