"""Cuts a model into pipeline stages by the costs of its units."""

from collections.abc import Callable, Mapping, Sequence
from itertools import chain
from typing import Any, NamedTuple

from nnmpi.arrays.backend import Backend
from nnmpi.collectives.price import FAR, NEAR, Link
from nnmpi.data import Inputs
from nnmpi.nn import Module
from nnmpi.nn.graph import Graph
from nnmpi.optim.of_options import state_arrays_of
from nnmpi.options.config import Config
from nnmpi.parallel.agreement import all_or_none, gather_objects
from nnmpi.parallel.arrangement import partition
from nnmpi.parallel.arrangement.division import UNIT_COSTS, Division, divide, place_of
from nnmpi.parallel.arrangement.partition import (
    CutCosts,
    SplitPoints,
    Unit,
    given_units,
    refuse_few,
    split_points,
)
from nnmpi.parallel.layout import Layout
from nnmpi.parallel.mesh import CUT_BY_AXIS
from nnmpi.parallel.unit_costs import Timing, UnitCost, UnitCosts, profile, stage_costs
from nnmpi.schedules.find import find
from nnmpi.schedules.op import Kind
from nnmpi.schedules.pipeline import SCHEDULES
from nnmpi.schedules.placement import Place

CUT = "cut"
"""The key of the cut among measured facts."""


def division_of(
    config: Config,
    graph: Graph,
    units: Sequence[Unit],
    costs: Callable[[], Sequence[UnitCost]],
    link: Link = NEAR,
) -> Division:
    """Returns the stages of a model without measuring: at the config's --cut, or at the best cut
    for costs(), that of each unit, over the network `link`."""
    place = place_of(config)
    count = len(place)
    cut: SplitPoints | None = None
    if config.cut is not None:
        units, cut = given_units(config.cut, graph, count)
    if cut is None:
        refuse_few(sum(unit.is_trained for unit in units), count, graph.notes)
        cut = best_cut(config, units, costs(), link, graph.notes) if count > 1 else ()
    return divide(graph, units, cut, place)


def copies(config: Config) -> int:
    """Returns how many numbers an element of a parameter takes: value, gradient, state."""
    return 2 + len(state_arrays_of(config))


def most_in_flight(config: Config) -> list[int]:
    """Returns for each stage the most micro-batches whose activations it keeps."""
    stages = len(place_of(config))
    most, count, virtual = [0] * stages, [0] * stages, stages // config.pp
    # 1F1B keeps no more at once with more; a user's schedule may allow no other number
    full = 2 * config.pp if config.schedule in SCHEDULES else config.batch_size
    passes = find(config.schedule).compute(config.pp, min(config.micro_batches, full), virtual)
    for op in chain.from_iterable(passes):
        count[op.stage] += (op.kind is Kind.F) - (op.kind in (Kind.B, Kind.W))
        most[op.stage] = max(most[op.stage], count[op.stage])
    return most


EQUAL = UnitCost(1.0, 1.0, 1.0, 0, 0, 0)


class MeasuredStages(NamedTuple):
    """The stages of a model, and the measurements by which it was cut.

    measured   a dict: name -> the cut, or the costs of the units; empty for one stage
    """

    division: Division
    facts: Mapping[str, Any] = {}
    measured: Mapping[str, Any] = {}


def measured_stages(
    config: Config,
    place: Place,
    layout: Layout,
    model: Module,
    graph: Graph,
    gather: Callable[[int], Inputs],
    on: Backend,
    known: Mapping[str, Any],
) -> MeasuredStages:
    """Returns the stages of a model: at the cut that the options give, or at the best one for the
    measured cost of each unit. Every rank calls it; ranks along tp measure a unit together.

    place    for each stage, the coordinate along pp of its rank
    gather   (n): the inputs of n samples to measure with
    known    earlier measurements; what is in it is not measured again"""
    text = known.get(CUT, config.cut)

    # a given cut is checked first: measuring takes long
    model_units, given = all_or_none(layout.all, lambda: given_units(text, graph, len(place)))
    if len(place) == 1:
        return MeasuredStages(divide(graph, model_units, (), (0,)))
    units = _measured_units(config, layout, model, graph, model_units, gather, on, known)
    along_pp = layout.axis["pp"]
    is_near = all(gather_objects(layout.all, len(along_pp.node()) == along_pp.size))
    link = NEAR if is_near else FAR

    def cut() -> MeasuredStages:
        costs, notes = units.costs, graph.notes
        chosen = best_cut(config, model_units, costs, link, notes) if given is None else given
        division = divide(graph, model_units, chosen, place)
        facts = _facts(model_units, chosen, division, costs)
        return MeasuredStages(division, facts, {CUT: facts[CUT], UNIT_COSTS: units})

    return all_or_none(layout.all, cut)


def _measured_units(
    config: Config,
    layout: Layout,
    model: Module,
    graph: Graph,
    model_units: Sequence[Unit],
    gather: Callable[[int], Inputs],
    on: Backend,
    known: Mapping[str, Any],
) -> UnitCosts:
    """Returns the cost of each unit for as many samples as a rank has in a micro-batch, at least 2:
    known, or measured on rank 0. Every rank calls it, with the arguments of `measured_stages`."""
    samples = max(-(-config.batch_size // (config.micro_batches * layout.batch.size)), 2)
    begins = tuple(u.first for u in model_units)

    def measure() -> UnitCosts:  # on rank 0, and on the ranks that divide layers with it
        if layout.batch.rank or layout.axis["pp"].rank:
            return UnitCosts(samples, begins, ())
        together = tuple(layout.axis[axis] for axis in CUT_BY_AXIS)
        timing = Timing(together=together, clock=layout.all.system.clock)
        costs = profile(model, graph, model_units, gather(samples), on, timing, config.dtype)
        layout.axis["tp"].free_sums()  # also for layers of stages that this rank will not have
        return UnitCosts(samples, begins, (*costs,))

    units = known[UNIT_COSTS].scaled(samples) if UNIT_COSTS in known else None
    if units is None or units.begins != begins:  # layers that a cut parts were others
        units = gather_objects(layout.all, all_or_none(layout.all, measure))[0]
    return units


def best_cut(
    config: Config,
    units: Sequence[Unit],
    costs: Sequence[UnitCost],
    link: Link,
    notes: Sequence[str] = (),
) -> SplitPoints:
    """Returns the cut whose slowest stage takes least time (see `split_points`). `link` is the
    network between stages; `notes` are added to an error: why some modules stay in one stage."""
    by = CutCosts(
        [cost.seconds for cost in costs],
        [unit.is_trained for unit in units],
        [cost.parameter_bytes * copies(config) for cost in costs],
        [cost.activation_bytes for cost in costs],
        # from one stage to the next, and the gradients back
        [2 * (link.alpha + cost.input_bytes * link.beta) for cost in costs],
    )
    return split_points(by, len(place_of(config)), most_in_flight(config), notes)


def _facts(
    units: Sequence[Unit], cut: SplitPoints, division: Division, costs: Sequence[UnitCost]
) -> dict[str, Any]:
    """Returns fields for the start event that describe the cut: as text and, for each stage, its
    rank along pp, layers, share of the time, and bytes of parameters and activations."""
    stages = stage_costs(costs, cut)
    seconds = sum(cost.seconds for cost in stages)
    return {
        CUT: partition.as_text(cut, units),
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
    }
