"""Which layers this rank has: the cut of a model into stages, and what is left of other stages."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, NoReturn

import numpy as np

from nnmpi.backend import Array, Backend
from nnmpi.config import Config
from nnmpi.data import Inputs
from nnmpi.nn import Module
from nnmpi.nn.graph import Edge, Graph
from nnmpi.nn.segment import segment
from nnmpi.parallel.agreement import all_or_none
from nnmpi.parallel.arrangement import partition
from nnmpi.parallel.arrangement.arrange import stages_of
from nnmpi.parallel.arrangement.arrangement import Arrangement
from nnmpi.parallel.arrangement.division import Division, divided
from nnmpi.parallel.arrangement.partition import Cut, Unit
from nnmpi.parallel.arrangement.program import measured_samples
from nnmpi.parallel.layout import Layout
from nnmpi.parallel.model.model_part import ModelPart
from nnmpi.parallel.pipeline.profile import Cost, profile, stage_costs
from nnmpi.schedules import SCHEDULES, programs
from nnmpi.sim import pipeline as sim

LONG = 256
"""Batches of an epoch that are simulated: more would change little."""


class Stages(NamedTuple):
    """How a model is cut into stages, and what the start event says of it."""

    division: Division
    facts: Mapping[str, Any]


def measured_stages(
    config: Config,
    layout: Layout,
    model: Module,
    graph: Graph,
    gather: Callable[[int], Inputs],
    on: Backend,
    batches: int,
) -> Stages:
    """The stages of a model, as its graph allows; every rank calls it.

    `gather(n)` returns n samples; an epoch has so many batches.

    The first rank measures the units, by which the model is cut unless the cut is given.
    """
    count = stages_of(config)
    # what is wrong with a cut that is given is said before measuring
    found, given = all_or_none(layout.all, lambda: partition.given_units(config.cut, graph, count))
    if count == 1:
        return Stages(divided(graph, found, (), 1), {})
    costs = _measured(config, layout, model, graph, found, gather, on)
    chosen = all_or_none(
        layout.all, lambda: best_cut(found, costs, count, graph.notes) if given is None else given
    )
    division = all_or_none(layout.all, lambda: divided(graph, found, chosen, config.pp))
    return Stages(division, _facts(config, found, chosen, division, costs, batches))


def _measured(
    config: Config,
    layout: Layout,
    model: Module,
    graph: Graph,
    found: Sequence[Unit],
    gather: Callable[[int], Inputs],
    on: Backend,
) -> list[Cost]:
    """The costs of the units on a micro-batch, the same on all ranks.

    They are measured on the first rank, and on those that it divides channels with.
    """
    samples = measured_samples(config, layout.axis["dp"].size)
    rows = np.zeros((len(found), len(Cost._fields)))

    def measure() -> None:
        if layout.axis["dp"].rank == layout.axis["pp"].rank == 0:
            x, tp = gather(samples), layout.axis["tp"]
            rows[:] = profile(model, graph, found, x, on, tp=tp, dtype=config.dtype)

    all_or_none(layout.all, measure)
    layout.all.broadcast(rows)
    return [Cost(*row) for row in rows.tolist()]


def best_cut(
    found: Sequence[Unit], costs: Sequence[Cost], count: int, notes: Sequence[str] = ()
) -> Cut:
    """The cut of units with these costs whose slowest stage is fastest (see `partition.cut`)."""
    return partition.cut(
        [cost.seconds for cost in costs],
        count,
        [unit.is_trained for unit in found],
        [cost.parameter_bytes + cost.activation_bytes for cost in costs],
        notes,
    )


def own_stages(
    model: Module, arrangement: Arrangement, rank: int, facts: Mapping[str, Any]
) -> ModelPart:
    """What a rank has of the model; parameters of others lose their memory."""
    division, graph = arrangement.division, arrangement.graph
    if len(division.stages) == 1:
        return ModelPart.whole(model)
    at = arrangement.mesh.coordinates(rank)
    own = division.of_rank(at["pp"])
    stages = {s: segment(model, graph, part.nodes, part.variables) for s, part in own.items()}
    parameters = dict(model.named_parameters())
    held = {n for part in own.values() for v in part.variables for n in graph.variables[v].names}
    for v, ranks in division.ranks().items():
        if at["pp"] not in ranks and graph.variables[v].is_parameter:
            path = graph.variables[v].path
            parameters[path].move(OnAnotherRank(path, ranks[0]), 0)
    return ModelPart(
        model,
        stages,
        len(division.stages),
        held.__contains__,
        [(parameters[path], ranks) for path, ranks in arrangement.tied.items()],
        facts,
        [
            tuple(resized(graph.edges[e], arrangement.local_shape(e, 1, at["tp"])) for e in s.takes)
            for s in division.stages[1:]
        ],
    )


def _facts(
    config: Config,
    found: Sequence[Unit],
    cut: Cut,
    division: Division,
    costs: Sequence[Cost],
    batches: int,
) -> dict[str, Any]:
    """What the start event says of the cut, and what the simulator predicts for it."""
    stages = stage_costs(costs, cut)
    seconds = [cost.seconds for cost in stages]
    simulated = _simulated(config, stages, batches)
    return {
        "cut": partition.as_text(cut, found),
        "predicted_bubble": round(simulated.bubble, 4),
        "stages": [
            {
                "rank": part.rank,
                "layers": part.layers,
                "time": round(cost.seconds / sum(seconds), 4),
                "parameter_bytes": int(cost.parameter_bytes),
                "activation_bytes": int(cost.activation_bytes),
            }
            for part, cost in zip(division.stages, stages, strict=True)
        ],
        "peak_activation_bytes": [round(nbytes) for nbytes in simulated.memory],
    }


def _simulated(config: Config, stages: Sequence[Cost], batches: int) -> sim.Simulation:
    """From an empty pipeline to an empty one: a step, or an epoch of steps that follow each other.

    Messages cost nothing.
    """
    times = [sim.StageTimes(f, i + w, i, w) for f, i, w, *_ in stages]
    schedule = SCHEDULES[config.schedule]
    micro_batches = min(config.micro_batches, config.batch_size)  # none is empty
    plan = programs(
        schedule,
        config.pp,
        min(batches, LONG) if schedule.update_each else micro_batches,
        len(stages) // config.pp,
        config.recompute,
    )
    whole, inputs = zip(*((c.activation_bytes, c.input_bytes) for c in stages), strict=True)
    return sim.simulate(plan, sim.Costs(times), whole, inputs=inputs)


def resized(edge: Edge, lengths: Sequence[int]) -> Edge:
    """The edge with axes of these lengths: of one sample, along the axis of samples."""
    axes = zip(edge.axes, lengths, strict=True)
    return edge._replace(axes=tuple(axis._replace(size=n) for axis, n in axes))


class OnAnotherRank:
    """The store of a parameter of another stage: it has no memory here."""

    def __init__(self, path: str, rank: int) -> None:
        self._where = f"{path} is in a stage of rank {rank} along pp, and not here"

    def value(self, i: int) -> Array:
        self._refuse()

    def slot(self, i: int) -> Array:
        self._refuse()

    def refresh(self, i: int, made: int) -> None:
        self._refuse()

    def written(self, i: int) -> None:
        self._refuse()

    @property
    def dtype(self) -> np.dtype[Any]:
        self._refuse()

    @property
    def rotates(self) -> bool:
        self._refuse()

    def _refuse(self) -> NoReturn:
        raise ValueError(f"{self._where}: read it there, or from a file of --save")
