"""Arrangements that nothing is built from: of a dry run, of a plan, and of ranks that are left."""

from collections.abc import Callable, Mapping
from dataclasses import replace

from nnmpi.data import Dataset, blank
from nnmpi.metrics import Metric
from nnmpi.nn import Module
from nnmpi.options.config import Config
from nnmpi.parallel import strategies
from nnmpi.parallel.arrangement.arrange import arrange
from nnmpi.parallel.arrangement.arrangement import Arrangement
from nnmpi.parallel.arrangement.cluster import Cluster
from nnmpi.parallel.arrangement.fewer import Fewer, arrange_fewer
from nnmpi.parallel.layout import mesh_of
from nnmpi.parallel.planning.machine import TYPICAL
from nnmpi.parallel.planning.paper import UNMEASURED
from nnmpi.parallel.planning.stage_cut import division_on_paper
from nnmpi.parallel.planning.unit_times import ModelTimes
from nnmpi.parallel.step.objective import Criterion
from nnmpi.run.setup import objectives
from nnmpi.run.setup.cutting import Uncut, sharding_of
from nnmpi.run.setup.setup import NO_METRICS, build_model


def uncut_of(config: Config) -> tuple[Module, Uncut]:
    """The model that a config names, on the data set that it names without its samples."""
    dataset = blank(config.data, config.data_dir, config.seed, config.context, config.tokenizer)
    model = build_model(config, None, dataset)
    return model, uncut(config, model, dataset, objectives.criterion(None))


def uncut(
    config: Config,
    model: Module,
    dataset: Dataset,
    loss: Criterion,
    metrics: Mapping[str, Metric] = NO_METRICS,
    build: Callable[[], Module] | None = None,
) -> Uncut:
    """What is known of a run before its model is cut; raises ValueError unless model, data and loss
    fit."""
    strategies.check_batch(config, len(dataset.train.y))
    objectives.check_labels(loss, dataset)
    graph = objectives.model_graph(config, model, dataset, loss, build)
    return Uncut(config, graph, loss, dataset, metrics)


def on_paper(uncut: Uncut, cluster: Cluster) -> Arrangement:
    """How ranks would be arranged; what a run measures is estimated."""
    config, graph = uncut.config, uncut.graph
    filled = replace(config, dp=mesh_of(config, cluster.size).axes["dp"])
    sharding = sharding_of(uncut._replace(config=filled))
    division = division_on_paper(ModelTimes(graph, TYPICAL, config.dtype), config)
    return arrange(config, cluster, graph, sharding, division, UNMEASURED)


def fitted(config: Config, ranks: int, uncut: Callable[[], Uncut]) -> Fewer:
    """The layout for so many ranks that is nearest to that of a config, and that its model can be
    divided for.

    `uncut` is asked for the model only where fewer ranks than one copy of it takes are there.
    """

    def divide(fewer: Config, working: int) -> None:
        on_paper(uncut()._replace(config=fewer), Cluster.on_paper(working))

    return arrange_fewer(config, ranks, strategies.check, divide)
