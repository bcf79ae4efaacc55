"""A layout drawn: who holds what, a row for each layer, a bar for each rank of one copy of the
model."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple, TypeVar

import numpy as np

from nnmpi.parallel.arrangement.arrangement import Arrangement, layers
from nnmpi.parallel.mesh import REPLICAS
from nnmpi.sim.drawing.svg import INK, PAPER, QUIET, blend, box, page, text

# ---- names of ranks, and of layers of equal blocks, for tables and drawings

Row = TypeVar("Row", bound=tuple[object, ...])

BLOCK = re.compile(r"(?<![^.])(\d+)\.")
"""Matches the number of a block in the name of one of its layers."""


def ranks_text(ranks: tuple[int, ...]) -> str:
    """Returns ranks as text, for example "0-3, 8, 10", "10 to 1022 in steps of 4" or "4-7, 12-15,
    20-23, ... 252-255"."""
    step = ranks[1] - ranks[0] if len(ranks) > 2 else 0
    if step > 1 and ranks == (*range(ranks[0], ranks[-1] + 1, step),):
        return f"{ranks[0]} to {ranks[-1]} in steps of {step}"
    runs = [
        f"{a}-{b}" if b > a + 1 else ", ".join(map(str, range(a, b + 1))) for a, b in _runs(ranks)
    ]
    return ", ".join(runs if len(runs) <= 5 else [*runs[:3], f"... {runs[-1]}"])


def merge_blocks(rows: Iterable[Row]) -> list[tuple[str, Row]]:
    """Merges rows that are equal except for a block number in the layer name in their first cell,
    and returns (name, row) pairs: h.0.fc and h.1.fc become h.0-1.fc."""
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
    return ",".join(f"{a}-{b}" if b > a else str(a) for a, b in _runs(numbers))


def _runs(numbers: Iterable[int]) -> list[tuple[int, int]]:
    """Returns (first, last) of each run of consecutive numbers."""
    values = np.fromiter(numbers, int)
    if (np.diff(values) < 1).any():
        values = np.unique(values)
    ends = np.flatnonzero(np.diff(values) > 1)
    starts, stops = [0, *(ends + 1).tolist()], [*ends.tolist(), len(values) - 1]
    return (
        [*zip(values[starts].tolist(), values[stops].tolist(), strict=True)] if values.size else []
    )


# ---- the drawing

HERE, ELSEWHERE = "#", "."
BAR = 12  # characters
LONG = 48  # characters of a sequence
MOST = 8  # ranks along tp and cp that are drawn
STAGES = ("#3b6fb6", "#d9822b", "#4f9d69", "#9c5fb0", "#c0504d", "#5aa5b8")


class DrawnLayer(NamedTuple):
    """A drawn layer: `parts` has the part of its parameters on each rank along tp, as (start, stop)
    from 0 to 1."""

    name: str
    kind: str
    how: str
    parts: tuple[tuple[float, float], ...]


def blocks(a: Arrangement) -> list[tuple[str, list[DrawnLayer]]]:
    """Returns, for each stage, the names of its ranks and its layers that have parameters; layers
    that differ only in the number of their block become one row, such as h.0-1.fc."""
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
    parts = tuple((0.0, float(a.sharding.branches.runs(k, t))) for t in range(tp))
    if bounds is not None:
        parts = tuple((bounds[t] / bounds[-1], bounds[t + 1] / bounds[-1]) for t in range(tp))
    layer = layers(a).get(k)
    return DrawnLayer(node.name, node.kind, layer.how if layer else "", parts)


def as_lines(a: Arrangement) -> Iterator[str]:
    """Yields the drawing line by line, as text."""
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
    """Yields a line for each rank along cp that shows which positions of a sequence it has."""
    cut = a.sharding.sequences
    if cut.ranks == 1:
        return
    yield "positions of sequences"
    for r in range(min(cut.ranks, MOST)):
        (a0, a1), (b0, b1) = (
            (round(start * LONG / cut.length), round(stop * LONG / cut.length))
            for start, stop in cut.chunks(r)
        )
        bar = "".join(HERE if a0 <= i < a1 or b0 <= i < b1 else ELSEWHERE for i in range(LONG))
        yield f"  cp {r}  {bar}  {cut.count(r):,} of {cut.length:,}"


def _bar(start: float, stop: float) -> str:
    lo, hi = round(start * BAR), round(stop * BAR)
    return ELSEWHERE * lo + HERE * (hi - lo) + ELSEWHERE * (BAR - hi)


# ---- as a picture

ROW, GAP, TOP, LINE, LEFT, RIGHT = 22, 4, 72, 15, 250, 190  # pixels
WIDE, BETWEEN = 900, (10, 24)  # all columns; between two, and between two replicas
COLUMNS = 16  # ranks of a stage that are drawn
SHARDED = {"parameters": 3, "gradients": 2, "optimizer state": 1}
"""The lowest --zero that divides each of these among replicas."""


class RankColumn(NamedTuple):
    """A rank in a picture: its coordinates, and the left edge and width of its column."""

    rank: int
    at: Mapping[str, int]
    left: float
    width: float


def as_svg(layouts: Mapping[str, Arrangement]) -> str:
    """Returns the drawings of several layouts as one SVG document, one below the other under their
    titles; a stage has a column for each rank, in the colour of the stage."""
    parts, top, right = list[str](), 0, 0.0
    for title, a in layouts.items():
        parts.append(text(16, top + 26, title, 18, weight="bold"))
        parts.append(text(16, top + 48, _axes(a), 13, QUIET))
        top += TOP
        for stage, (ranks, rows) in enumerate(blocks(a)):
            columns = _columns(a, stage)
            tp = [column.at["tp"] for column in columns]
            cells = [row._replace(parts=tuple(row.parts[t] for t in tp)) for row in rows]
            cells += _replica_rows(a, columns) if stage < a.mesh.axes["pp"] else []
            name = f"stage {stage}: {ranks}"
            if a.mesh.size > a.mesh.axes["pp"] * len(columns):
                name += f", of which {len(columns)} are drawn"
            head = LINE * (2 + len(_captions(a, columns[0])))
            height = head + len(cells) * (ROW + GAP)
            colour = STAGES[stage % len(STAGES)]
            parts.append(box(12, top, 5, height, colour))
            parts.append(text(26, top + LINE / 2, name, 14, weight="bold"))
            parts += _column_heads(a, columns, top + 1.7 * LINE)
            for i, row in enumerate(cells):
                shade = colour if row.kind else blend(colour, PAPER, 0.4)
                parts += _cells(row, top + head + i * (ROW + GAP), columns, shade)
            top += height + 14
            right = max(right, columns[-1].left + columns[-1].width)
    return page(right + RIGHT, top + 8, parts)


def _axes(a: Arrangement) -> str:
    """Returns the sizes of the axes with several ranks, the ZeRO stage and the servers, as text."""
    words = [" x ".join(f"{axis} {n}" for axis, n in a.mesh.axes.items() if n > 1) or "one rank"]
    words += [f"ZeRO {a.store.zero}"] * bool(a.store.zero)
    servers = tuple(range(a.mesh.size, a.ranks))
    words += [f"servers: {ranks_text(servers)}"] * bool(servers)
    return ", ".join(words)


def _columns(a: Arrangement, stage: int) -> list[RankColumn]:
    """Returns the columns of a stage: its first ranks, one replica after the other."""
    first, tp = a.mesh.group(0, "pp")[a.division.place[stage]], a.mesh.axes["tp"]
    replicas = a.mesh.group(first, *REPLICAS)[: max(COLUMNS // tp, 1)]
    ranks = [rank for replica in replicas for rank in a.mesh.group(replica, "tp")[:COLUMNS]]
    width = min(110, WIDE / len(ranks) - BETWEEN[0])
    x, columns = float(LEFT), list[RankColumn]()
    for k, rank in enumerate(ranks):
        columns.append(RankColumn(rank, a.mesh.coordinates(rank), x, width))
        x += width + BETWEEN[(k + 1) % min(tp, COLUMNS) == 0]
    return columns


def _replica_rows(a: Arrangement, columns: Sequence[RankColumn]) -> Iterator[DrawnLayer]:
    """Yields rows that show how replicas share samples, parameters, gradients and optimizer
    state."""
    dp = a.mesh.axes["dp"]
    if a.mesh.count(*REPLICAS) == 1:
        return
    if dp > 1 and not a.servers:
        samples = tuple((c.at["dp"] / dp, (c.at["dp"] + 1) / dp) for c in columns)
        yield DrawnLayer("samples of a batch", "", f"1/{dp} along dp", samples)
    shares = [_share(a, column.rank) for column in columns]
    for name, zero in SHARDED.items():
        parts = shares if zero == 1 or a.store.zero >= zero else [(0, 1)] * len(columns)
        count, bars = parts[0][1], tuple((i / n, (i + 1) / n) for i, n in parts)
        how = "copy" if a.store.zero or shares[0][1] == 1 else "one copy for a node"
        if count > 1:
            how = f"1/{count} on each rank" + f", ZeRO {a.store.zero}" * bool(a.store.zero)
        if a.servers and zero == 1:
            how, bars = "on the servers", tuple((0.0, 0.0) for _ in columns)
        yield DrawnLayer(name, "", how, bars)


def _share(a: Arrangement, rank: int) -> tuple[int, int]:
    """Returns (index, count): which part of each bucket a rank updates, of how many parts."""
    buckets = a.model_on(rank).buckets
    ranks = a.store.updaters(a, rank, buckets[0]) if buckets else (rank,)
    return ranks.index(rank), len(ranks)


def _captions(a: Arrangement, column: RankColumn) -> list[str]:
    at = (f"{axis} {i}" for axis, i in column.at.items() if a.mesh.axes[axis] > 1)
    return [f"rank {column.rank}", *at]


def _column_heads(a: Arrangement, columns: Sequence[RankColumn], y: float) -> Iterator[str]:
    """Yields the number of each rank above its coordinates, as SVG texts."""
    for column in columns:
        for i, words in enumerate(_captions(a, column)):
            colour, weight = (QUIET, "normal") if i else (INK, "bold")
            size = min(12, (column.width + BETWEEN[0]) / (0.6 * len(words)))
            yield text(column.left, y + i * LINE, words, size, colour, weight=weight)


def _cells(row: DrawnLayer, y: float, columns: Sequence[RankColumn], colour: str) -> Iterator[str]:
    yield text(26, y + ROW / 2, f"{row.name}  {row.kind}"[:32], 13, INK)
    for column, (start, stop) in zip(columns, row.parts, strict=True):
        x, width = column.left, column.width
        yield box(x, y, width, ROW, PAPER, f' stroke="{QUIET}" stroke-width="0.7"')
        yield box(x + start * width, y, (stop - start) * width, ROW, colour)
    yield text(columns[-1].left + columns[-1].width + 14, y + ROW / 2, row.how, 12, QUIET)
