"""A mesh as a picture: the grid of its ranks.

        tp 0   tp 1                  an axis of one rank is not drawn; others beside the last
dp 0  [  0  ] [  1  ]                two are rows too
dp 1  [  2  ] [  3  ]
"""

from nnmpi.parallel.mesh import Mesh
from nnmpi.sim.drawing.svg import INK, QUIET, box, page, text

CELL, ROW, LEFT, TOP, MOST = 58, 30, 180, 64, 32
COLOURS = ("#e6eefb", "#fbeedd", "#e3f3e8", "#f0e6f6")


def mesh(m: Mesh) -> str:
    """Rows of ranks that differ along the last axis only; neighbours along others have colours."""
    axes = [axis for axis, n in m.axes.items() if n > 1] or [*m.axes][-1:]
    *outer, last = axes
    rows = m.groups(last)[:MOST]
    title = " x ".join(f"{axis} {n}" for axis, n in m.axes.items() if n > 1) or "one rank"
    drawn = sum(len(ranks[:MOST]) for ranks in rows)
    if m.size > drawn:
        title += f", {drawn:,} of {m.size:,} ranks"
    parts = [text(16, 22, title, 16, weight="bold")]
    for i, _ in enumerate(rows[0][:MOST]):
        parts.append(text(LEFT + (i + 0.5) * CELL, TOP - 12, f"{last} {i}", 12, QUIET, "middle"))
    for k, ranks in enumerate(rows):
        at, y = m.coordinates(ranks[0]), TOP + k * ROW
        name = ", ".join(f"{axis} {at[axis]}" for axis in outer)
        parts.append(text(LEFT - 12, y + ROW / 2, name, 12, QUIET, "end"))
        colour = COLOURS[at[outer[0]] % len(COLOURS)] if outer else COLOURS[0]
        for i, rank in enumerate(ranks[:MOST]):
            parts.append(box(LEFT + i * CELL, y, CELL - 4, ROW - 4, colour))
            middle = LEFT + i * CELL + (CELL - 4) / 2
            parts.append(text(middle, y + ROW / 2 - 2, str(rank), 13, INK, "middle"))
    width = max(LEFT + min(len(rows[0]), MOST) * CELL, 10 * len(title)) + 16
    return page(width, TOP + len(rows) * ROW + 12, parts)
