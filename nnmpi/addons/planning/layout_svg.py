"""Draws a layout: a row for each layer, a column for each rank."""

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from nnmpi.addons.planning.layout_lines import DrawnLayer, blocks
from nnmpi.addons.simulator.drawing.svg import INK, PAPER, QUIET, blend, box, page, text
from nnmpi.parallel.arrangement.arrangement import Arrangement
from nnmpi.parallel.arrangement.rank_names import ranks_text
from nnmpi.parallel.mesh import REPLICAS, sizes_text

STAGES = ("#3b6fb6", "#d9822b", "#4f9d69", "#9c5fb0", "#c0504d", "#5aa5b8")
ROW, GAP, TOP, LINE, LEFT, RIGHT = 22, 4, 72, 15, 250, 190  # pixels
WIDE, BETWEEN = 900, (10, 24)  # all columns; between two, and between two replicas
COLUMNS = 16  # ranks of a stage that are drawn
SHARDED = {"parameters": 3, "gradients": 2, "optimizer state": 1}
"""By kind of state: the smallest value of --zero that divides it among replicas."""


class RankColumn(NamedTuple):
    """A rank in a picture: its coordinates, and the left edge and width of its column."""

    rank: int
    at: Mapping[str, int]
    left: float
    width: float


def as_svg(layouts: Mapping[str, Arrangement]) -> str:
    """Returns drawings of layouts as one SVG, one below the other."""
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
    """Returns a text with axes of several ranks, ZeRO stage and servers."""
    words = [sizes_text(a.mesh.axes)]
    words += [f"ZeRO {a.store.zero}"] * bool(a.store.zero)
    servers = tuple(range(a.mesh.size, a.ranks))
    words += [f"servers: {ranks_text(servers)}"] * bool(servers)
    return ", ".join(words)


def _columns(a: Arrangement, stage: int) -> list[RankColumn]:
    """Returns a stage's columns, one for each rank, replica by replica."""
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
    """Yields rows with each rank's share of samples and state, if there are replicas."""
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
    """Returns (index, count): of `count` equal parts of each gradient bucket, this rank updates
    that with this index."""
    buckets = a.model_on(rank).buckets
    ranks = a.store.updaters(a, rank, buckets[-1]) if buckets else (rank,)
    return ranks.index(rank), len(ranks)


def _captions(a: Arrangement, column: RankColumn) -> list[str]:
    at = (f"{axis} {i}" for axis, i in column.at.items() if a.mesh.axes[axis] > 1)
    return [f"rank {column.rank}", *at]


def _column_heads(a: Arrangement, columns: Sequence[RankColumn], y: float) -> Iterator[str]:
    """Yields the heads of `columns`: each rank's number above its coordinates."""
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
