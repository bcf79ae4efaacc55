"""Searches of layouts of small models, on machines that are made up."""

from typing import NamedTuple

from nnmpi.collectives.price import Link
from nnmpi.config import Config
from nnmpi.data import blank
from nnmpi.nn.graph import Graph
from nnmpi.parallel import plan
from nnmpi.parallel.arrangement.cluster import Cluster
from nnmpi.parallel.arrangement.partition import units
from nnmpi.parallel.planning.exchange_time import ExchangeTimes
from nnmpi.parallel.planning.machine import TYPICAL, Machine, MeasuredModel, UnitTimes
from nnmpi.parallel.planning.paper import Paper
from nnmpi.parallel.planning.search import Searcher
from nnmpi.parallel.planning.step_time import CostModel
from nnmpi.parallel.planning.unit_times import ModelTimes, signature
from nnmpi.parallel.tensor.sharding import Sharding
from nnmpi.run.setup import objectives
from nnmpi.run.setup.cutting import Uncut, sharding_of
from nnmpi.run.setup.setup import NO_METRICS, build_model

SLOW_LINKS = TYPICAL._replace(far=Link(1e-4, 1e-8))
FREE_LINKS = TYPICAL._replace(
    near=Link(0, 0), far=Link(0, 0), adding=0.0, updates={"sgd": 0.0}, step=0.0, micro_batch=0.0
)
"""Nothing but units takes time."""


class Planning(NamedTuple):
    """What a search of one model on one cluster is made of."""

    paper: Paper
    costs: CostModel

    def searcher(self, most: float = float("inf"), prunes: bool = True) -> Searcher:
        return Searcher(self.paper, self.costs, most, prunes)


def planning(config: Config, ranks: int, nodes: int = 1, machine: Machine = TYPICAL) -> Planning:
    """A plan of a config on so many ranks."""
    dataset = blank(config.data, config.data_dir, config.seed, config.context, config.tokenizer)
    loss, graph = objectives.criterion(None), graph_of(config)
    cluster, times = Cluster.on_paper(ranks, nodes), ModelTimes(graph, machine, config.dtype)

    def cut(one: Config) -> Sharding:
        return sharding_of(Uncut(one, graph, loss, dataset, NO_METRICS))

    paper = Paper(config, cluster, graph, times, plan.check, cut)
    return Planning(paper, CostModel(machine, times, ExchangeTimes(machine, cluster)))


def graph_of(config: Config) -> Graph:
    """The graph of the model of a config."""
    dataset = blank(config.data, config.data_dir, config.seed, config.context, config.tokenizer)
    model, loss = build_model(config, None, dataset), objectives.criterion(None)
    return objectives.model_graph(config, model, dataset, loss)


def measured(config: Config, machine: Machine, *seconds: UnitTimes) -> Machine:
    """The machine where each unit of the model takes these seconds a sample, the last ones as often
    as there are more units."""
    graph = graph_of(config)
    several = [*seconds, *[seconds[-1]] * (len(units(graph)) - len(seconds))]
    rows = {n: [UnitTimes(*(n * t for t in one)) for one in several] for n in (1, 2)}
    model = MeasuredModel(signature(graph), 1, config.dtype, rows)
    return machine._replace(models=(model,))
