"""Where a model is cut into stages, from the measured or estimated cost of its units."""

from collections.abc import Callable, Mapping, Sequence
from itertools import chain
from math import ceil
from typing import Any, NamedTuple

import numpy as np

from nnmpi.arrays.backend import Backend
from nnmpi.collectives.price import Link
from nnmpi.data import Inputs
from nnmpi.nn import Module
from nnmpi.nn.graph import Graph
from nnmpi.options.config import Config
from nnmpi.parallel.agreement import all_or_none, gather_objects
from nnmpi.parallel.arrangement import partition
from nnmpi.parallel.arrangement.division import Division, divide, place_of
from nnmpi.parallel.arrangement.partition import (
    CutCosts,
    SplitPoints,
    Unit,
    given_units,
    refuse_few,
    split_points,
)
from nnmpi.parallel.arrangement.state_on_paper import state_arrays_of
from nnmpi.parallel.layout import Layout
from nnmpi.parallel.pipeline.profile import Timing, UnitCost, UnitCosts, profile, stage_costs
from nnmpi.planning.machine import TYPICAL
from nnmpi.planning.unit_times import ModelTimes
from nnmpi.schedules import proof
from nnmpi.schedules.lowering import programs
from nnmpi.schedules.op import Kind
from nnmpi.sim import pipeline as sim


def division_on_paper(times: ModelTimes, config: Config, link: Link = TYPICAL.near) -> Division:
    """Divides a model into stages without measuring it: by the config's cut, or by the best one for
    these times of units; `link` connects ranks along pp."""
    graph, place, units = times.graph, place_of(config), times.units
    count = len(place)
    cut: SplitPoints | None = None
    if config.cut is not None:
        units, cut = given_units(config.cut, graph, count)
    if cut is None:
        refuse_few(sum(unit.is_trained for unit in units), count, graph.notes)
        samples, cut = ceil(config.batch_size / config.micro_batches / (config.dp or 1)), ()
        if count > 1:
            costs = costs_on_paper(times, config.dtype, samples)
            cut = best_cut(config, units, costs, link, graph.notes)
    return divide(graph, units, cut, place)


def costs_on_paper(times: ModelTimes, dtype: str, samples: int) -> list[UnitCost]:
    """The costs of units for a micro-batch of `samples` samples, if they keep exactly their
    outputs."""
    graph, itemsize = times.graph, np.dtype(dtype).itemsize
    parameters = (sum(graph.variables[v].size for v in unit.variables) for unit in times.units)
    made = ([e for k in unit.nodes for e in graph.nodes[k].outputs] for unit in times.units)
    kept = (samples * sum(graph.edges[e].numbers for e in edges) for edges in made)
    enters = (samples * n for n in times.crossing)
    rows = zip(times.whole(samples).tolist(), parameters, kept, enters, strict=True)
    return [UnitCost(*seconds, *(n * itemsize for n in numbers)) for seconds, *numbers in rows]


def measured_samples(config: Config, parts: int) -> int:
    """Returns how many samples to measure the units of a model with: a rank's samples in a
    micro-batch."""
    return max(-(-config.batch_size // (config.micro_batches * parts)), 2)


def copies(config: Config) -> int:
    """The number of values that a rank holds per parameter element: value, gradient and optimizer
    state."""
    return 2 + len(state_arrays_of(config))


def border_seconds(link: Link, nbytes: float) -> float:
    """The seconds to send the activations of a micro-batch between two stages, and their gradient
    back."""
    return 2 * (link.alpha + nbytes * link.beta)


def most_in_flight(config: Config) -> list[int]:
    """For each stage, the largest number of micro-batches that are between forward and backward at
    once."""
    stages = len(place_of(config))
    most, count, virtual = [0] * stages, [0] * stages, stages // config.pp
    full = min(config.micro_batches, 2 * config.pp)  # 1F1B keeps no more at once with more
    schedule = proof.find(config.schedule)
    for op in chain.from_iterable(schedule.compute(config.pp, full, virtual)):
        count[op.stage] += (op.kind is Kind.F) - (op.kind in (Kind.B, Kind.W))
        most[op.stage] = max(most[op.stage], count[op.stage])
    return most


CUT, UNIT_COSTS = "cut", "unit_costs"
"""Keys of what is measured to cut a model."""

LONG = 256
"""At most this many batches of an epoch are simulated: more would change little."""


class MeasuredStages(NamedTuple):
    """The stages of a model, with what was measured to cut it.

    facts      what the start event says of them
    measured   the cut and the costs of units, if there are several stages
    """

    division: Division
    facts: Mapping[str, Any] = {}
    measured: Mapping[str, Any] = {}


def measured_stages(
    config: Config,
    layout: Layout,
    model: Module,
    graph: Graph,
    gather: Callable[[int], Inputs],
    on: Backend,
    batches: int,
    known: Mapping[str, Any],
) -> MeasuredStages:
    """The stages of a model, cut by the units that ranks measure unless the cut is given; every
    rank calls it.

    `gather(n)` returns n samples; `batches` is the number of batches in an epoch; `known` holds
    what was measured before. Ranks that divide the layers of a unit measure it together.
    """
    place, text = place_of(config), known.get(CUT, config.cut)
    count = len(place)
    # a given cut is checked first: measuring takes long
    model_units, given = all_or_none(layout.all, lambda: given_units(text, graph, count))
    if count == 1:
        return MeasuredStages(divide(graph, model_units, (), (0,)))
    samples = measured_samples(config, layout.batch.size)
    begins = tuple(u.first for u in model_units)

    def measure() -> UnitCosts:  # on rank 0, and on the ranks that divide layers with it
        if layout.batch.rank or layout.axis["pp"].rank:
            return UnitCosts(samples, begins, ())
        together = layout.axis["tp"], layout.axis["cp"]
        timing = Timing(together=together, clock=layout.all.system.clock)
        costs = profile(model, graph, model_units, gather(samples), on, timing, config.dtype)
        layout.axis["tp"].free_sums()  # also for layers of stages that this rank will not have
        return UnitCosts(samples, begins, (*costs,))

    units = known[UNIT_COSTS].scaled(samples) if UNIT_COSTS in known else None
    if units is None or units.begins != begins:  # layers that a cut parts were others
        units = gather_objects(layout.all, all_or_none(layout.all, measure))[0]
    costs = units.costs

    along_pp = layout.axis["pp"]
    is_near = all(gather_objects(layout.all, len(along_pp.node()) == along_pp.size))
    link = TYPICAL.near if is_near else TYPICAL.far

    def cut() -> MeasuredStages:
        chosen = best_cut(config, model_units, costs, link, graph.notes) if given is None else given
        division = divide(graph, model_units, chosen, place)
        facts = _facts(config, model_units, chosen, division, costs, batches)
        return MeasuredStages(division, facts, {CUT: facts[CUT], UNIT_COSTS: units})

    return all_or_none(layout.all, cut)


def best_cut(
    config: Config,
    units: Sequence[Unit],
    costs: Sequence[UnitCost],
    link: Link,
    notes: Sequence[str] = (),
) -> SplitPoints:
    """The cut of units with these costs whose slowest stage is fastest (see `split_points`)."""
    by = CutCosts(
        [cost.seconds for cost in costs],
        [unit.is_trained for unit in units],
        [cost.parameter_bytes * copies(config) for cost in costs],
        [cost.activation_bytes for cost in costs],
        [border_seconds(link, cost.input_bytes) for cost in costs],
    )
    return split_points(by, len(place_of(config)), most_in_flight(config), notes)


def _facts(
    config: Config,
    units: Sequence[Unit],
    cut: SplitPoints,
    division: Division,
    costs: Sequence[UnitCost],
    batches: int,
) -> dict[str, Any]:
    """The fields of the start event about the cut, with what the simulator predicts for it."""
    stages, schedule = stage_costs(costs, cut), proof.find(config.schedule)
    seconds = sum(cost.seconds for cost in stages)
    # the bubble counts from an empty pipeline to an empty one: a step, or with PipeDream an epoch
    steps = min(batches, LONG) if schedule.update_each else 1
    micro_batches = min(config.micro_batches, config.batch_size) * steps  # none is empty
    virtual = len(stages) // config.pp
    simulated = sim.simulate(
        programs(schedule, config.pp, micro_batches, virtual, config.recompute == "stage"),
        sim.Costs([sim.stage_times(f, i, w) for f, i, w, *_ in stages]),  # messages take no time
        [cost.activation_bytes for cost in stages],
        inputs=[cost.input_bytes for cost in stages],
    )
    return {
        CUT: partition.as_text(cut, units),
        "predicted_bubble": round(simulated.bubble, 4),
        "stages": [
            {
                "rank": part.rank,
                "layers": part.layers,
                "time": round(cost.seconds / seconds, 4),
                "parameter_bytes": int(cost.parameter_bytes),
                "activation_bytes": int(cost.activation_bytes),
            }
            for part, cost in zip(division.stages, stages, strict=True)
        ],
        "peak_activation_bytes": [round(nbytes) for nbytes in simulated.memory],
    }
