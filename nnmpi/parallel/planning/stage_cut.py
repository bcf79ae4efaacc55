"""Where a model is cut into stages on paper: by what its units take, as measured or estimated."""

from collections.abc import Sequence
from math import ceil

import numpy as np

from nnmpi.collectives.price import Link
from nnmpi.config import Config
from nnmpi.nn.graph import Graph
from nnmpi.parallel.arrangement import partition
from nnmpi.parallel.arrangement.division import Division, divide, stages_of
from nnmpi.parallel.arrangement.memory import sums_of_optimizer
from nnmpi.parallel.arrangement.partition import CutCosts
from nnmpi.parallel.planning.machine import TYPICAL
from nnmpi.parallel.planning.unit_times import ModelTimes
from nnmpi.schedules.lowering import programs
from nnmpi.schedules.op import Kind
from nnmpi.schedules.pipeline import SCHEDULES


def division_on_paper(times: ModelTimes, config: Config, link: Link = TYPICAL.near) -> Division:
    """The stages of the config's cut, or of the best one; `link` is between ranks along pp."""
    graph, count = times.graph, stages_of(config)
    units, cut = partition.given_units(config.cut, graph, count)
    if cut is None:
        samples = ceil(config.batch_size / config.micro_batches / (config.dp or 1))
        costs = _costs(times, config, samples, link)
        cut = partition.split_points(costs, count, live(config), graph.notes) if count > 1 else ()
    return divide(graph, units, cut, config.pp)


def _costs(times: ModelTimes, config: Config, samples: int, link: Link) -> CutCosts:
    graph, units, itemsize = times.graph, times.units, np.dtype(config.dtype).itemsize
    fixed = [sum(graph.variables[v].size for v in unit.variables) for unit in units]
    kept = [_numbers(graph, [e for k in u.nodes for e in graph.nodes[k].outputs]) for u in units]
    sent = [_numbers(graph, graph.crossing(unit.nodes.start)) for unit in units]
    return CutCosts(
        [unit.seconds for unit in times.whole(samples)],
        [unit.is_trained for unit in units],
        [n * itemsize * copies(config) for n in fixed],
        [n * itemsize * samples for n in kept],
        [border_seconds(link, n * itemsize * samples) for n in sent],
    )


def _numbers(graph: Graph, edges: Sequence[int]) -> int:
    """Of a sample."""
    return sum(graph.edges[e].numbers for e in edges)


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
    schedule = SCHEDULES[config.schedule]
    for op in (op for ops in programs(schedule, config.pp, full, virtual) for op in ops):
        now[op.stage] += (op.kind is Kind.F) - (op.kind in (Kind.B, Kind.W))
        found[op.stage] = max(found[op.stage], now[op.stage])
    return found
