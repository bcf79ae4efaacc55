"""The arrangement of a run that is not built: for --dry-run, and `simulate layout`."""

from nnmpi.config import Config
from nnmpi.data import Dataset
from nnmpi.nn import Module
from nnmpi.parallel import plan
from nnmpi.parallel.arrangement.arrange import arrange, stages_of
from nnmpi.parallel.arrangement.arrangement import Arrangement
from nnmpi.parallel.arrangement.cluster import Cluster
from nnmpi.parallel.arrangement.division import estimated_division
from nnmpi.parallel.step.objective import Criterion
from nnmpi.run import builders, objectives
from nnmpi.run.model_graph import model_graph

UNMEASURED = {"allreduce": "ring"}
"""What stands for the fastest all-reduce where nothing is measured."""


def arranged(
    config: Config,
    model: Module,
    dataset: Dataset,
    loss: Criterion,
    cluster: Cluster,
) -> Arrangement:
    """How ranks would be arranged; what a run measures is estimated."""
    plan.check(config, cluster.size)
    plan.check_batch(config, len(dataset.train.y))
    objectives.check_labels(loss, dataset)
    graph = model_graph(config, model, dataset, loss)
    whole = not objectives.takes_parts(loss, dataset)
    sharding = builders.sharded(config, graph, whole)
    division = estimated_division(graph, stages_of(config), config.pp, config.cut)
    return arrange(config, cluster, graph, sharding, division, UNMEASURED)
