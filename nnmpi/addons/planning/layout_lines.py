"""Draws a layout as text: a bar for each rank's part of a layer."""

import re
from collections.abc import Iterable, Iterator
from typing import NamedTuple, TypeVar

from nnmpi.addons.transformer.context.sequence_cut import sequences_of
from nnmpi.parallel.arrangement.arrangement import Arrangement, layers
from nnmpi.parallel.arrangement.rank_names import ranks_text, runs

# ---- names of layers of equal blocks, for tables and drawings

Row = TypeVar("Row", bound=tuple[object, ...])

BLOCK = re.compile(r"(?<![^.])(\d+)\.")
"""Matches the number of a block in the path of a layer, such as 0 in h.0.fc."""


def merge_blocks(rows: Iterable[Row]) -> list[tuple[str, Row]]:
    """Merges rows, as (name, row), whose names differ in a block: h.0.fc, h.1.fc are h.0-1.fc."""
    groups: dict[tuple[object, ...], tuple[list[int], Row]] = {}
    for row in rows:
        prefix, *number = BLOCK.split(str(row[0]), maxsplit=1)
        key = (prefix, *number[1:], *row[1:])
        groups.setdefault(key, ([], row))[0].extend(map(int, number[:1]))
    return [
        (BLOCK.sub(f"{_blocks(blocks)}.", str(row[0]), count=1), row)
        for blocks, row in groups.values()
    ]


def _blocks(numbers: Iterable[int]) -> str:
    """Returns block numbers as text: "0-3,5"."""
    return ",".join(f"{a}-{b}" if b > a else str(a) for a, b in runs(numbers))


# ---- the drawing

HERE, ELSEWHERE = "#", "."
BAR = 12  # characters
MOST_CHARACTERS = 48  # characters of a sequence
MOST_RANKS = 8  # ranks along tp and cp that are drawn


class DrawnLayer(NamedTuple):
    """A row in a drawing of a layout: a layer, and how ranks divide it.

    name    the name of the layer; "h.0-1.fc" for equal layers of several blocks
    kind    its class, such as "Linear", or the name of an op
    how     the way in which it is divided, such as "column"; "" if it is whole
    parts   the part of its parameters on each rank along tp: (start, stop) from 0 to 1
    """

    name: str
    kind: str
    how: str
    parts: tuple[tuple[float, float], ...]


def blocks(a: Arrangement) -> list[tuple[str, list[DrawnLayer]]]:
    """Returns (names of ranks, layers) of each stage; equal blocks are one row, h.0-1.fc."""
    drawn = []
    for s, nodes in enumerate(a.stages):
        pp = a.division.place[s]
        first = next(rank for rank in a.mesh.group(0, "pp") if a.mesh.coordinates(rank)["pp"] == pp)
        ranks = a.mesh.group(first, *(axis for axis in a.mesh.axes if axis != "pp"))
        rows = merge_blocks(_row(a, k) for k in nodes if a.graph.nodes[k].variables)
        layers = [row._replace(name=name) for name, row in rows]
        drawn.append((f"rank{'s' * (len(ranks) > 1)} {ranks_text(ranks)}", layers))
    return drawn


def _row(a: Arrangement, k: int) -> DrawnLayer:
    node, tp = a.graph.nodes[k], a.mesh.axes["tp"]
    cuts = [a.sharding.variables.get(v) for v in node.variables]
    bounds = next((cut.bounds for cut in cuts if cut is not None), None)
    parts = tuple((0.0, float(a.sharding.owned.runs(k, t))) for t in range(tp))
    if bounds is not None:
        parts = tuple((bounds[t] / bounds[-1], bounds[t + 1] / bounds[-1]) for t in range(tp))
    layer = layers(a).get(k)
    return DrawnLayer(node.name, node.kind, layer.how if layer else "", parts)


def as_lines(a: Arrangement) -> Iterator[str]:
    """Yields the lines of a drawing of the layout: which rank has which part of each layer."""
    tp = min(a.mesh.axes["tp"], MOST_RANKS)
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
    """Yields, as lines of the drawing, which positions of a sequence each rank along cp has."""
    cut = sequences_of(a.sharding)
    if cut.ranks == 1:
        return
    yield "positions of sequences"
    for r in range(min(cut.ranks, MOST_RANKS)):
        (a0, a1), (b0, b1) = (
            (
                round(start * MOST_CHARACTERS / cut.length),
                round(stop * MOST_CHARACTERS / cut.length),
            )
            for start, stop in cut.chunks(r)
        )
        bar = "".join(
            HERE if a0 <= i < a1 or b0 <= i < b1 else ELSEWHERE for i in range(MOST_CHARACTERS)
        )
        yield f"  cp {r}  {bar}  {cut.count(r):,} of {cut.length:,}"


def _bar(start: float, stop: float) -> str:
    lo, hi = round(start * BAR), round(stop * BAR)
    return ELSEWHERE * lo + HERE * (hi - lo) + ELSEWHERE * (BAR - hi)
