"""Searches of layouts of small models, on machines that are made up."""

from typing import NamedTuple

import pytest

from nnmpi import nn
from nnmpi.addons.planning.arranger import Arranger
from nnmpi.addons.planning.machine import TYPICAL, Machine, MeasuredModel, UnitTimes
from nnmpi.addons.planning.rank_costs import CostModel
from nnmpi.addons.planning.run.explained import parts_of_step
from nnmpi.addons.planning.run.planning import PlanRequest, plan_models
from nnmpi.addons.planning.search import Searcher
from nnmpi.addons.planning.step_time import StepTime
from nnmpi.addons.planning.unit_times import signature
from nnmpi.collectives.price import Link
from nnmpi.nn.graph import Graph
from nnmpi.options.config import Config
from nnmpi.parallel.arrangement.arrangement import Arrangement
from nnmpi.parallel.arrangement.cluster import Cluster
from nnmpi.parallel.arrangement.partition import units
from nnmpi.run.setup.cutting import uncut_of

SLOW_LINKS = TYPICAL._replace(far=Link(1e-4, 1e-8))
FREE_LINKS = TYPICAL._replace(
    near=Link(0, 0), far=Link(0, 0), adding=0.0, updates={"sgd": 0.0}, step=0.0, micro_batch=0.0
)
"""Nothing but units takes time."""


def large_stem() -> nn.Sequential:
    """Its activations are many, and its weights few."""
    return nn.Sequential(
        *(nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(3, 2, 1)),
        *(nn.Conv2d(16, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU()),
        *(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 10)),
    )


class Planning(NamedTuple):
    """What a search of one model on one cluster is made of."""

    arranger: Arranger
    costs: CostModel

    def searcher(self, most: float = float("inf"), prunes: bool = True) -> Searcher:
        return Searcher(self.arranger, self.costs, most, prunes)


def planning(config: Config, ranks: int, nodes: int = 1, machine: Machine = TYPICAL) -> Planning:
    """A plan of a config on so many ranks."""
    request, cluster = PlanRequest(ranks, nodes, None, None), Cluster.on_paper(ranks, nodes)
    models = plan_models(request, uncut_of(config)[1], cluster, machine)
    return Planning(models.arranger, models.costs)


def parts_add_up(a: Arrangement, costs: CostModel) -> StepTime:
    """The time of a step, whose terms the parts of --explain add up to."""
    model, parts = parts_of_step(a, costs)
    for term, seconds in model.time._asdict().items():
        assert sum(p.seconds for p in parts if p.term == term) == pytest.approx(seconds, abs=1e-11)
    return model.time


def graph_of(config: Config) -> Graph:
    """The graph of the model of a config."""
    return uncut_of(config)[1].graph


def measured(config: Config, machine: Machine, *seconds: UnitTimes) -> Machine:
    """The machine where each unit of the model takes these seconds a sample, the last ones as often
    as there are more units."""
    graph = graph_of(config)
    several = [*seconds, *[seconds[-1]] * (len(units(graph)) - len(seconds))]
    rows = {n: [UnitTimes(*(n * t for t in one)) for one in several] for n in (1, 2)}
    model = MeasuredModel(signature(graph), 1, config.dtype, rows)
    return machine._replace(models=(model,))
