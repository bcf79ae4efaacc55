"""Curves as an SVG picture: shares from 0 to 1 over numbers on a logarithmic scale."""

from collections.abc import Iterator, Mapping, Sequence
from math import log
from typing import NamedTuple

from nnmpi.sim.drawing.svg import BOLD, IDLE, INK, MARGIN, QUIET, page, text

COLOURS = ("#2f6fd0", "#d5700a", "#2a8f57")
WIDTH, HEIGHT, TOP, LEGEND = 560, 320, 70, 26  # in pixels: letters fit a phone


class Point(NamedTuple):
    """A point of a curve: its line passes through y, and a dot with an error bar is beside it."""

    x: float
    y: float
    dot: float
    error: float


def curves(lines: Mapping[str, Sequence[Point]], title: str, axis: str) -> str:
    """An SVG document of lines with their names below; `axis` names the numbers."""
    xs = [point.x for point in next(iter(lines.values()))]
    scale = WIDTH / (log(xs[-1] / xs[0]) or 1)
    at = {x: MARGIN + log(x / xs[0]) * scale for x in xs}
    size = min(16, (MARGIN + WIDTH) / (BOLD * len(title)))
    parts = [text(16, 30, title, size, weight="bold")]
    for k in range(6):
        parts += [f'<path d="M{MARGIN} {_y(k / 5):g}h{WIDTH}" stroke="{IDLE}"/>']
        parts += [text(MARGIN - 10, _y(k / 5), f"{k / 5:.0%}", 12, QUIET, "end")]
    parts += [text(at[x], _y(0) + 16, f"{x:,}", 12, QUIET, "middle") for x in xs]
    parts += [text(MARGIN + WIDTH, _y(0) + 36, axis, 13, INK, "end")]
    for k, (name, points) in enumerate(lines.items()):
        colour = COLOURS[k % len(COLOURS)]
        parts += [*_curve(points, at, colour)]
        parts += [text(MARGIN, _y(0) + 36 + k * LEGEND, name, 14, colour, weight="bold")]
    return page(MARGIN + WIDTH + 40, _y(0) + 36 + len(lines) * LEGEND, parts)


def _y(share: float) -> float:
    return TOP + HEIGHT * (1 - share)


def _curve(points: Sequence[Point], at: Mapping[float, float], colour: str) -> Iterator[str]:
    """Yields a line, and a dot with two standard errors to either side for each point."""
    path = "L".join(f"{at[point.x]:.1f} {_y(point.y):.1f}" for point in points)
    yield f'<path d="M{path}" stroke="{colour}" stroke-width="2" fill="none"/>'
    for point in points:
        x, bar = at[point.x], 2 * HEIGHT * point.error
        yield f'<circle cx="{x:.1f}" cy="{_y(point.dot):.1f}" r="3.5" fill="{colour}"/>'
        yield f'<path d="M{x:.1f} {_y(point.dot) - bar:.1f}v{2 * bar:.1f}" stroke="{colour}"/>'
