"""The arrangement that a run would have, without one: for dry runs, pictures and decoders."""

from dataclasses import replace

from nnmpi.parallel.arrangement.arrange import UNMEASURED, arrange
from nnmpi.parallel.arrangement.arrangement import Arrangement
from nnmpi.parallel.arrangement.cluster import Cluster
from nnmpi.parallel.layout import mesh_of
from nnmpi.planning.machine import TYPICAL
from nnmpi.planning.stage_costs import division_on_paper
from nnmpi.planning.unit_times import ModelTimes
from nnmpi.run.setup.cutting import UncutModel, sharding_of


def on_paper(uncut: UncutModel, cluster: Cluster) -> Arrangement:
    """The arrangement that a run on this cluster would have, with estimates of what a run
    measures."""
    config, graph = uncut.config, uncut.graph
    filled = replace(config, dp=mesh_of(config, cluster.size).axes["dp"])
    sharding = sharding_of(uncut._replace(config=filled))
    division = division_on_paper(ModelTimes(graph, TYPICAL, config.dtype), config)
    return arrange(config, cluster, graph, sharding, division, UNMEASURED)
