"""Pictures of objects (algorithms, schedules, layouts, ...) in notebooks, as the commands draw
them. The classes are in packages that may not import drawing: if nnmpi is imported in IPython,
those in PICTURES get their method `_repr_svg_` from here."""

from collections.abc import Callable
from typing import Any

from nnmpi.addons.pages.notebook.graph_svg import graph
from nnmpi.addons.pages.plot import RunLog, picture
from nnmpi.addons.planning import layout_svg
from nnmpi.addons.simulator.collective import OPERATIONS
from nnmpi.addons.simulator.commands.trace import TraceFile
from nnmpi.addons.simulator.drawing import rounds
from nnmpi.addons.simulator.drawing.svg import INK, QUIET, box, page, svg, text
from nnmpi.addons.simulator.drawing.timeline import Timeline
from nnmpi.addons.simulator.pipeline import Costs, Simulation, simulate
from nnmpi.collectives.algorithms import ALGORITHMS
from nnmpi.collectives.step import Algorithm, PlanError
from nnmpi.nn.graph import Graph
from nnmpi.options.amounts import plural
from nnmpi.parallel.arrangement.arrangement import Arrangement
from nnmpi.parallel.mesh import Mesh, sizes_text
from nnmpi.schedules.lists.of_schedule import lists
from nnmpi.schedules.pipeline import Schedule

RANKS, MICRO_BATCHES, STAGES = 4, 8, 2
"""The defaults of pictures; STAGES is per rank, for schedules that allow several."""

CLAIMS = ("all-reduce", "reduce", "broadcast", "all-gather", "reduce-scatter")
"""Collectives that an algorithm may be; a `reduce` of one chunk is a `reduce-scatter` too."""


def algorithm(a: Algorithm, ranks: int = RANKS) -> str:
    """Returns a picture of the rounds of an algorithm, as the first collective in CLAIMS that it
    computes, or a text that says why it is no all-reduce."""
    name = next((name for name, known in ALGORITHMS.items() if known is a), "")
    wrong = ""
    for operation in CLAIMS:
        try:
            title = f"{operation} {name}".rstrip() + f", {ranks} ranks"
            return rounds.as_svg({title: a}, ranks, OPERATIONS[operation].collective.claim)
        except PlanError as error:
            wrong = wrong or f"{operation} of {ranks} ranks: {error}"
    return page(16 + 8 * len(wrong), 40, [text(16, 20, wrong, 14)])


def schedule(s: Schedule, ranks: int = RANKS, micro_batches: int = MICRO_BATCHES) -> str:
    """Returns a picture of one step with a pipeline schedule, as SVG: the passes of each rank, if
    backward passes take twice as long as forward passes and messages take no time."""
    stages = s.stages_a_rank(STAGES)
    simulated = simulate(lists(s, ranks, micro_batches, stages), Costs.uniform(ranks, stages))
    return simulation(simulated, f"{s.about}; ")


def simulation(s: Simulation, title: str = "") -> str:
    """Returns a picture of the passes in a simulated pipeline, with the bubble in the title."""
    return svg([s.timeline._replace(title=f"{title}bubble {s.bubble:.1%}")])


# ---- a mesh

CELL, ROW, LEFT, TOP, MOST = 58, 30, 180, 64, 32
COLOURS = ("#e6eefb", "#fbeedd", "#e3f3e8", "#f0e6f6")


def mesh(m: Mesh) -> str:
    """Returns a picture of a mesh as SVG: a grid of ranks, in which colours show neighbours along
    the axis of rows.

            tp 0   tp 1                  an axis of one rank is not drawn; axes beyond the last two
    dp 0  [  0  ] [  1  ]                are drawn as rows too
    dp 1  [  2  ] [  3  ]
    """
    axes = [axis for axis, n in m.axes.items() if n > 1] or [*m.axes][-1:]
    *outer, last = axes
    rows = m.groups(last)[:MOST]
    title = sizes_text(m.axes)
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


# ---- the table

PICTURES: dict[type, Callable[[Any], str | None]] = {
    Algorithm: algorithm,
    Schedule: schedule,
    Simulation: simulation,
    Timeline: lambda t: svg([t]),
    Graph: graph,
    Arrangement: lambda a: layout_svg.as_svg({f"{a.config.model} on {plural(a.ranks, 'rank')}": a}),
    Mesh: mesh,
    TraceFile: lambda t: svg([t.timeline(t.median_step())]),
    RunLog: lambda run: picture([run]),
}

for kind, draw in PICTURES.items():
    setattr(kind, "_repr_svg_", lambda value, draw=draw: draw(value))  # noqa: B010

for kind in PICTURES.keys() - {Mesh}:
    # beside a picture; a trace in full would be megabytes of a notebook
    setattr(kind, "_repr_pretty_", lambda value, p, cycle: p.text(f"<{type(value).__name__}>"))  # noqa: B010
