"""Draws who sends to whom in gossip: circles and arrows, as SVG."""

from collections.abc import Iterator, Mapping
from math import cos, hypot, pi, sin

from nnmpi.addons.simulator.drawing.svg import INK, PAPER, QUIET, page, text
from nnmpi.collectives.gossip import Gossip
from nnmpi.options.amounts import plural

MOST_REPLICAS = 32  # replicas that a drawing has room for
CELL, RADIUS, NODE, TOP = 250, 100.0, 12.0, 56  # in pixels
ACROSS = 2  # graphs in a row: letters stay legible on a phone
ARROW, BEND, HEAD = "#2f6fd0", 0.14, 8.0


def neighbours(graphs: Mapping[str, Gossip]) -> str:
    """Returns an SVG document of the graphs, by name, two in a row. Replicas lie on a circle, or on
    the graph's grid if that has several rows."""
    if (most := max(graph.replicas for graph in graphs.values())) > MOST_REPLICAS:
        raise ValueError(
            f"a drawing of neighbours has room for {MOST_REPLICAS} replicas, got {most}"
        )
    parts = list[str]()
    for k, (name, graph) in enumerate(graphs.items()):
        row, column = divmod(k, ACROSS)
        x, y, sent = column * CELL, row * (TOP + CELL), plural(len(graph.offsets), "message")
        parts.append(text(x + 16, y + 24, name, 18, weight="bold"))
        parts.append(text(x + 16, y + 46, f"{sent} a replica, gap {graph.gap():.2g}", 13, QUIET))
        parts += _graph(graph, x + CELL / 2, y + TOP + CELL / 2)
    rows = -(-len(graphs) // ACROSS)
    return page(min(len(graphs), ACROSS) * CELL, rows * (TOP + CELL), parts)


def _graph(graph: Gossip, x: float, y: float) -> Iterator[str]:
    """Yields the SVG of a gossip graph around the point (x, y)."""
    at = [_place(graph, r, x, y) for r in range(graph.replicas)]
    for r, start in enumerate(at):
        for to, _ in graph.exchanges(r):
            yield _arrow(start, at[to])
    for r, (a, b) in enumerate(at):
        yield f'<circle cx="{a:.1f}" cy="{b:.1f}" r="{NODE}" fill="{PAPER}" stroke="{INK}"/>'
        yield text(a, b, f"{r}", 12, anchor="middle")


def _place(graph: Gossip, r: int, x: float, y: float) -> tuple[float, float]:
    if graph.rows == 1:
        angle = 2 * pi * r / graph.replicas - pi / 2
        return x + RADIUS * cos(angle), y + RADIUS * sin(angle)
    row, column = divmod(r, graph.columns)
    step = 2 * RADIUS / (max(graph.rows, graph.columns) - 1 or 1)
    return x + (column - (graph.columns - 1) / 2) * step, y + (row - (graph.rows - 1) / 2) * step


def _arrow(start: tuple[float, float], end: tuple[float, float]) -> str:
    """Returns a curved arrow between circles, beside that of the other direction."""
    (x, y), (u, v) = start, end
    bx, by = (x + u) / 2 + BEND * (v - y), (y + v) / 2 - BEND * (u - x)  # the point of control
    reach = hypot(bx - u, by - v)
    dx, dy = (u - bx) / reach, (v - by) / reach
    tip, tail = (u - NODE * dx, v - NODE * dy), (u - (NODE + HEAD) * dx, v - (NODE + HEAD) * dy)
    sx, sy = x + NODE * (bx - x) / reach, y + NODE * (by - y) / reach
    wide = HEAD / 2.4
    curve = f"M{sx:.1f} {sy:.1f}Q{bx:.1f} {by:.1f} {tail[0]:.1f} {tail[1]:.1f}"
    head = (
        f"M{tip[0]:.1f} {tip[1]:.1f}L{tail[0] - wide * dy:.1f} {tail[1] + wide * dx:.1f}"
        f"L{tail[0] + wide * dy:.1f} {tail[1] - wide * dx:.1f}z"
    )
    return (
        f'<path d="{curve}" stroke="{ARROW}" fill="none" opacity="0.7"/>'
        f'<path d="{head}" fill="{ARROW}"/>'
    )
