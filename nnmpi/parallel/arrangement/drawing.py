"""Who holds what, drawn: a row a layer, a bar a rank of one copy of the model."""

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from nnmpi.drawing.svg import INK, PAPER, QUIET, box, page, text
from nnmpi.parallel.arrangement.alike_ranks import alike_layers, numbers_of
from nnmpi.parallel.arrangement.arrangement import Arrangement, layers

HERE, ELSEWHERE = "#", "."
BAR = 12  # characters
LONG = 48  # of a sequence
MOST = 8  # ranks along tp and cp that are drawn
STAGES = ("#3b6fb6", "#d9822b", "#4f9d69", "#9c5fb0", "#c0504d", "#5aa5b8")


class DrawnLayer(NamedTuple):
    """A layer: the part of its parameters that each rank along tp has, from 0 to 1."""

    name: str
    kind: str
    how: str
    parts: tuple[tuple[float, float], ...]


def blocks(a: Arrangement) -> list[tuple[str, list[DrawnLayer]]]:
    """The ranks of each stage, and its layers that have parameters; those of blocks once."""
    found = []
    for s, nodes in enumerate(a.stages):
        pp = s % a.mesh.axes["pp"]
        first = next(rank for rank in a.mesh.group(0, "pp") if a.mesh.coordinates(rank)["pp"] == pp)
        ranks = a.mesh.group(first, *(axis for axis in a.mesh.axes if axis != "pp"))
        rows = alike_layers(_row(a, k) for k in nodes if a.graph.nodes[k].variables)
        layers = [row._replace(name=name) for name, row in rows]
        found.append((f"rank{'s' * (len(ranks) > 1)} {numbers_of(ranks)}", layers))
    return found


def _row(a: Arrangement, k: int) -> DrawnLayer:
    node, tp = a.graph.nodes[k], a.mesh.axes["tp"]
    cuts = [a.sharding.variables.get(v) for v in node.variables]
    bounds = next((cut.bounds for cut in cuts if cut is not None), None)
    parts = tuple((0.0, float(a.sharding.branches.runs(k, t))) for t in range(tp))
    if bounds is not None:
        parts = tuple((bounds[t] / bounds[-1], bounds[t + 1] / bounds[-1]) for t in range(tp))
    layer = layers(a).get(k)
    return DrawnLayer(node.name, node.kind, layer.how if layer else "", parts)


def as_lines(a: Arrangement) -> Iterator[str]:
    """The drawing as text."""
    tp = min(a.mesh.axes["tp"], MOST)
    for stage, (ranks, rows) in enumerate(blocks(a)):
        yield f"stage {stage} on {ranks}"
        names = [f"  {row.name} {row.kind}" for row in rows]
        width = max(map(len, names), default=0)
        if tp > 1 and rows:
            head = "  ".join(f"tp {t}".ljust(BAR) for t in range(tp))
            yield f"{' ' * width}  {head}".rstrip()
        for name, row in zip(names, rows, strict=True):
            bars = "  ".join(_bar(*part) for part in row.parts[:tp])
            yield f"{name.ljust(width)}  {bars}  {row.how}".rstrip()

    yield from _positions(a)


def _positions(a: Arrangement) -> Iterator[str]:
    """The positions of each rank along cp, as parts of a sequence."""
    cut = a.sharding.sequences
    if cut.ranks == 1:
        return
    yield "positions of sequences"
    for r in range(min(cut.ranks, MOST)):
        (a0, a1), (b0, b1) = (
            (round(start * LONG / cut.length), round(stop * LONG / cut.length))
            for start, stop in cut.stretches(r)
        )
        bar = "".join(HERE if a0 <= i < a1 or b0 <= i < b1 else ELSEWHERE for i in range(LONG))
        yield f"  cp {r}  {bar}  {cut.count(r):,} of {cut.length:,}"


def _bar(start: float, stop: float) -> str:
    lo, hi = round(start * BAR), round(stop * BAR)
    return ELSEWHERE * lo + HERE * (hi - lo) + ELSEWHERE * (BAR - hi)


# ---- as a picture

ROW, GAP, TOP, HEAD, LEFT, CELL = 22, 4, 64, 48, 250, 110  # pixels


def as_svg(layouts: Mapping[str, Arrangement]) -> str:
    """The drawings as an SVG document, one below the other under their titles: a column a rank of
    one copy, in the colour of its stage."""
    parts, top = list[str](), 0
    for title, a in layouts.items():
        found, tp = blocks(a), min(a.mesh.axes["tp"], MOST)
        parts.append(text(16, top + 26, title, 18, weight="bold"))
        top += TOP
        for stage, (ranks, rows) in enumerate(found):
            parts += _stage(f"stage {stage}: {ranks}", rows, top, tp, STAGES[stage % len(STAGES)])
            top += HEAD + len(rows) * (ROW + GAP)
    most = min(max(a.mesh.axes["tp"] for a in layouts.values()), MOST)
    return page(LEFT + most * (CELL + 14) + 140, top + 8, parts)


def _stage(
    title: str, rows: Sequence[DrawnLayer], top: float, tp: int, colour: str
) -> Iterator[str]:
    yield box(12, top, 5, HEAD - 14 + len(rows) * (ROW + GAP), colour)
    yield text(26, top + 10, title, 14, weight="bold")
    for t in range(tp if tp > 1 else 0):
        yield text(LEFT + t * (CELL + 14), top + 10, f"tp {t}", 12, QUIET)
    for i, row in enumerate(rows):
        yield from _drawn(row, top + 26 + i * (ROW + GAP), tp, colour)


def _drawn(row: DrawnLayer, y: float, tp: int, colour: str) -> Iterator[str]:
    yield text(26, y + ROW / 2, f"{row.name}  {row.kind}"[:32], 13, INK)
    for t, (start, stop) in enumerate(row.parts[:tp]):
        x = LEFT + t * (CELL + 14)
        yield box(x, y, CELL, ROW, PAPER, f' stroke="{QUIET}" stroke-width="0.7"')
        yield box(x + start * CELL, y, (stop - start) * CELL, ROW, colour)
    yield text(LEFT + tp * (CELL + 14), y + ROW / 2, row.how, 12, QUIET)
