"""Divides a model into stages by estimated costs, and predicts the bubble."""

from math import ceil
from typing import Any

from nnmpi.addons.planning.unit_times import ModelTimes
from nnmpi.addons.simulator import pipeline as sim
from nnmpi.arrays import dtypes
from nnmpi.collectives.price import NEAR, Link
from nnmpi.io.output.messages import EventFields
from nnmpi.options.config import Config
from nnmpi.parallel.arrangement.arrangement import Arrangement
from nnmpi.parallel.arrangement.division import UNIT_COSTS, Division, place_of
from nnmpi.parallel.stage_cut import division_of
from nnmpi.parallel.unit_costs import UnitCost, UnitCosts, stage_costs
from nnmpi.schedules.find import find
from nnmpi.schedules.lists.of_schedule import lists

MOST_BATCHES = 256
"""At most this many batches of an epoch are simulated: more would change little."""


def division_on_paper(times: ModelTimes, config: Config, link: Link = NEAR) -> Division:
    """Returns the best division of a model into pipeline stages by the predicted seconds of its
    units, and of messages on `link`, between two ranks along pp."""
    samples = ceil(config.batch_size / config.micro_batches / (config.dp or 1))

    def costs() -> list[UnitCost]:
        return costs_on_paper(times, config.dtype, samples)

    return division_of(config, times.graph, times.units, costs, link)


def costs_on_paper(times: ModelTimes, dtype: str, samples: int) -> list[UnitCost]:
    """Returns the predicted cost of each unit; its bytes are those of its output alone."""
    graph, itemsize = times.graph, dtypes.on_paper(dtype).itemsize
    parameters = (sum(graph.variables[v].size for v in unit.variables) for unit in times.units)
    made = ([e for k in unit.nodes for e in graph.nodes[k].outputs] for unit in times.units)
    kept = (samples * sum(graph.edges[e].elements for e in edges) for edges in made)
    enters = (samples * n for n in times.crossing)
    rows = zip(times.whole(samples).tolist(), parameters, kept, enters, strict=True)
    return [UnitCost(*seconds, *(n * itemsize for n in numbers)) for seconds, *numbers in rows]


def pipeline_fields(a: Arrangement, batches: int) -> dict[str, Any]:
    """Returns two fields about a pipeline for the start event: the predicted bubble (share of idle
    time) in an epoch, and the peak bytes of activations on each rank; {} without a pipeline."""
    if len(place_of(a.config)) == 1:  # with --memory, units of one stage are stages of a division
        return {}
    simulated = _simulated(a, batches)
    return {
        "predicted_bubble": round(simulated.bubble, 4),
        "peak_activation_bytes": [round(nbytes) for nbytes in simulated.memory],
    }


def _simulated(a: Arrangement, batches: int) -> sim.Simulation:
    config, schedule = a.config, find(a.config.schedule)
    units: UnitCosts = a.measured[UNIT_COSTS]
    cut = tuple(k for k, first in enumerate(units.begins) if first in a.division.begins)
    stages = stage_costs(units.costs, cut)
    # the bubble counts from an empty pipeline to an empty one: a step, or with PipeDream an epoch
    steps = min(batches, MOST_BATCHES) if schedule.update_each else 1
    micro_batches = min(config.micro_batches, config.batch_size) * steps  # none is empty
    virtual = len(stages) // config.pp
    return sim.simulate(
        lists(schedule, config.pp, micro_batches, virtual, config.recompute == "stage"),
        sim.Costs([sim.stage_times(f, i, w) for f, i, w, *_ in stages]),  # messages take no time
        [cost.activation_bytes for cost in stages],
        inputs=[cost.input_bytes for cost in stages],
    )


FIELDS = EventFields(start=pipeline_fields)
