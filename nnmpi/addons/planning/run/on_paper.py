"""Computes how a run would arrange the model on ranks (which rank has which part), without running
it: for dry runs, pictures and decoders."""

from nnmpi.addons.planning.machine import TYPICAL
from nnmpi.addons.planning.stage_costs import division_on_paper
from nnmpi.addons.planning.unit_times import ModelTimes
from nnmpi.nn.graph import Graph
from nnmpi.options.config import Config
from nnmpi.parallel.arrangement.arrangement import Arrangement
from nnmpi.parallel.arrangement.cluster import Cluster
from nnmpi.parallel.arrangement.division import Division
from nnmpi.run.setup.cutting import UncutModel, on_cluster


def on_paper(uncut: UncutModel, cluster: Cluster) -> Arrangement:
    """Returns a run's arrangement on a cluster; estimates stand for measured figures."""

    def divide(config: Config, graph: Graph) -> Division:
        return division_on_paper(ModelTimes(graph, TYPICAL, config.dtype), config)

    return on_cluster(uncut, cluster, divide)
