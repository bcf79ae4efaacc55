"""Draws a graph: each row is a node with its parameters and the shape of its output; lines beside
the rows are tensors that skip rows, such as residual connections."""

from nnmpi.addons.simulator.drawing.svg import INK, QUIET, box, page, text
from nnmpi.nn.graph import Graph

ROW, TOP, LEFT, LANE, NAME, MOST = 30.0, 44.0, 16.0, 14.0, 300.0, 400
LAYER, OP, LINE = "#e6eefb", "#eef0f3", "#c2447f"


def graph(g: Graph) -> str:
    """Returns a picture of a model's graph as SVG; a long graph is cut after its first nodes."""
    nodes, skips = g.nodes[:MOST], _skips(g)
    lanes, ends = list[int](), list[int]()  # the row at which each lane is free again
    for start, end in skips:
        lane = next((i for i, row in enumerate(ends) if row <= start), len(ends))
        ends[lane : lane + 1] = [end]
        lanes.append(lane)
    x = LEFT + LANE * (len(ends) + 1)
    size = sum(v.size for v in g.variables if v.is_parameter)
    parts = [text(LEFT, 20, f"{len(g.nodes):,} nodes, {size:,} parameters", 15, INK)]
    parts.append(text(x + NAME + 14, TOP - 12, "output", 12, QUIET))
    parts.append(text(x + NAME + 200, TOP - 12, "parameters", 12, QUIET))
    for k, node in enumerate(nodes):
        y = TOP + k * ROW
        size = sum(g.variables[v].size for v in node.variables if g.variables[v].is_parameter)
        shape = " ".join(_shape(g, e) for e in node.outputs)
        parts.append(box(x, y, NAME, ROW - 6, OP if node.layer is None else LAYER))
        words = node.kind if node.name == node.kind else f"{node.name}  {node.kind}"
        parts.append(text(x + 8, y + ROW / 2 - 3, words[:40], 13))
        parts.append(text(x + NAME + 14, y + ROW / 2 - 3, shape, 12, QUIET))
        parts.append(text(x + NAME + 200, y + ROW / 2 - 3, f"{size:,}" if size else "", 12, QUIET))
        if k + 1 in {i for e in node.outputs for i in g.users()[e]} and k + 1 < len(nodes):
            parts.append(f'<path d="M{x + 20} {y + ROW - 6}v6" stroke="{QUIET}"/>')
    for (start, end), lane in zip(skips, lanes, strict=True):
        at, a, b = x - LANE * (lane + 1), _middle(start) + 6, _middle(end) - 4
        path = f"M{x:g} {a:g}H{at:g}V{b:g}H{x - 3:g}l-4 -3m4 3l-4 3"
        parts.append(f'<path d="{path}" fill="none" stroke="{LINE}"/>')
    return page(x + NAME + 300, TOP + (len(nodes) + 0.3) * ROW, parts)


def _skips(g: Graph) -> list[tuple[int, int]]:
    """Returns (from row, to row) of tensors that skip the rows between; row -1 is the input of the
    model."""
    users, skips = g.users(), list[tuple[int, int]]()
    made = {e: k for k, node in enumerate(g.nodes) for e in node.outputs}
    for e, rows in users.items():
        start = made.get(e, -1)
        skips += [(start, row) for row in rows if row > start + 1 and row < min(len(g.nodes), MOST)]
    return sorted(skips)


def _middle(row: int) -> float:
    return TOP + (row + 0.5) * ROW - 3


def _shape(g: Graph, e: int) -> str:
    """Returns the shape of tensor `e` as text, such as `(N, 16, 8)` for N samples."""
    sizes = [f"{a.size}" for a in g.edges[e].axes]
    if g.edges[e].of_samples:
        sizes[0] = f"{sizes[0]} N".removeprefix("1 ")
    return f"({', '.join(sizes)})"
