"""Where a model is cut into stages on paper: by what its units take, as measured or estimated."""

from itertools import chain
from math import ceil

import numpy as np

from nnmpi.collectives.price import Link
from nnmpi.options.config import Config
from nnmpi.parallel.arrangement.division import Division, divide, stages_of
from nnmpi.parallel.arrangement.partition import (
    CutCosts,
    SplitPoints,
    given_units,
    refuse_few,
    split_points,
)
from nnmpi.parallel.arrangement.state_bytes import sums_of_optimizer
from nnmpi.parallel.planning.machine import TYPICAL
from nnmpi.parallel.planning.unit_times import ModelTimes
from nnmpi.schedules import proof
from nnmpi.schedules.op import Kind


def division_on_paper(times: ModelTimes, config: Config, link: Link = TYPICAL.near) -> Division:
    """The stages of the config's cut, or of the best one; `link` is between ranks along pp."""
    graph, count, units = times.graph, stages_of(config), times.units
    cut: SplitPoints | None = None
    if config.cut is not None:
        units, cut = given_units(config.cut, graph, count)
    if cut is None:
        refuse_few(sum(unit.is_trained for unit in units), count, graph.notes)
        samples = ceil(config.batch_size / config.micro_batches / (config.dp or 1))
        costs = _costs(times, config, samples, link)
        cut = split_points(costs, count, live(config), graph.notes) if count > 1 else ()
    return divide(graph, units, cut, config.pp)


def _costs(times: ModelTimes, config: Config, samples: int, link: Link) -> CutCosts:
    graph, units, itemsize = times.graph, times.units, np.dtype(config.dtype).itemsize
    fixed = [sum(graph.variables[v].size for v in unit.variables) for unit in units]
    made = ([e for k in unit.nodes for e in graph.nodes[k].outputs] for unit in units)
    kept = [sum(graph.edges[e].numbers for e in edges) for edges in made]
    return CutCosts(
        [unit.seconds for unit in times.whole(samples)],
        [unit.is_trained for unit in units],
        [n * itemsize * copies(config) for n in fixed],
        [n * itemsize * samples for n in kept],
        [border_seconds(link, n * itemsize * samples) for n in times.crossing],
    )


def copies(config: Config) -> int:
    """How many numbers a rank holds for each parameter: its value, gradient and running sums."""
    return 2 + sums_of_optimizer(config)


def border_seconds(link: Link, nbytes: float) -> float:
    """Of the messages of a micro-batch between two stages: activations, and their gradient."""
    return 2 * (link.alpha + nbytes * link.beta)


def live(config: Config) -> list[int]:
    """How many micro-batches each stage has between their forward and backward passes at most."""
    found, now = [0] * stages_of(config), [0] * stages_of(config)
    virtual = len(found) // config.pp
    full = min(config.micro_batches, 2 * config.pp)  # with more, 1F1B has no more at once
    schedule = proof.find(config.schedule)
    for op in chain.from_iterable(schedule.compute(config.pp, full, virtual)):
        now[op.stage] += (op.kind is Kind.F) - (op.kind in (Kind.B, Kind.W))
        found[op.stage] = max(found[op.stage], now[op.stage])
    return found
