"""What a notebook shows of a value: the picture that a command draws of it.

The values lie on floors below, and know nothing of drawing: each class of the table gets its
`_repr_svg_` here, when nnmpi is imported.
"""

from collections.abc import Callable
from typing import Any

from nnmpi.collectives.algorithms import ALGORITHMS
from nnmpi.collectives.step import Algorithm, PlanError
from nnmpi.nn.graph import Graph
from nnmpi.notebook.graph_svg import graph
from nnmpi.notebook.mesh_svg import mesh
from nnmpi.parallel.arrangement import drawing
from nnmpi.parallel.arrangement.arrangement import Arrangement
from nnmpi.parallel.mesh import Mesh
from nnmpi.run.report.plot import RunLog, picture
from nnmpi.schedules.lowering import programs
from nnmpi.schedules.pipeline import Schedule
from nnmpi.sim.collective import OPERATIONS
from nnmpi.sim.commands.trace import TraceFile
from nnmpi.sim.drawing import rounds_svg
from nnmpi.sim.drawing.svg import page, svg, text
from nnmpi.sim.drawing.tables import plural
from nnmpi.sim.drawing.timeline import Timeline
from nnmpi.sim.pipeline import Costs, Simulation, simulate

RANKS, MICRO_BATCHES, STAGES = 4, 8, 2
"""Of what is drawn without saying how many: stages are of a rank, where it may have several."""

CLAIMS = ("all-reduce", "reduce", "broadcast", "all-gather", "reduce-scatter")
"""What an algorithm may be; one that is a `reduce` of one chunk is a `reduce-scatter` of it too."""


def algorithm(a: Algorithm, ranks: int = RANKS) -> str:
    """Its rounds; of a plan that is no collective, why it is no all-reduce."""
    name = next((name for name, known in ALGORITHMS.items() if known is a), "")
    wrong = ""
    for operation in CLAIMS:
        try:
            title = f"{operation} {name}".rstrip() + f", {ranks} ranks"
            return rounds_svg.as_svg({title: a}, ranks, OPERATIONS[operation].claim)
        except PlanError as error:
            wrong = wrong or f"{operation} of {ranks} ranks: {error}"
    return page(16 + 8 * len(wrong), 40, [text(16, 20, wrong, 14)])


def schedule(s: Schedule, ranks: int = RANKS, micro_batches: int = MICRO_BATCHES) -> str:
    """A step: backward passes take twice as long as forward passes, messages nothing."""
    stages = STAGES if s.virtual else 1
    found = simulate(programs(s, ranks, micro_batches, stages), Costs.uniform(ranks, stages))
    return simulation(found, f"{s.about}; ")


def simulation(s: Simulation, title: str = "") -> str:
    """What ranks do, and the bubble."""
    return svg([s.timeline._replace(title=f"{title}bubble {s.bubble:.1%}")])


def arrangement(a: Arrangement) -> str:
    """Who has which layers."""
    return drawing.as_svg({f"{a.config.model} on {plural(a.ranks, 'rank')}": a})


def trace(t: TraceFile) -> str:
    """The step of median time."""
    return svg([t.timeline(t.median_step())])


PICTURES: dict[type, Callable[[Any], str | None]] = {
    Algorithm: algorithm,
    Schedule: schedule,
    Simulation: simulation,
    Timeline: lambda t: svg([t]),
    Graph: graph,
    Arrangement: arrangement,
    Mesh: mesh,
    TraceFile: trace,
    RunLog: lambda run: picture([run]),
}

for kind, draw in PICTURES.items():
    setattr(kind, "_repr_svg_", lambda value, draw=draw: draw(value))  # noqa: B010

for kind in PICTURES.keys() - {Mesh}:
    # beside a picture; a trace in full would be megabytes of a notebook
    setattr(kind, "_repr_pretty_", lambda value, p, cycle: p.text(f"<{type(value).__name__}>"))  # noqa: B010
