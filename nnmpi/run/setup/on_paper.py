"""Arrangements that nothing is built from: of a dry run, and of ranks that are left."""

from collections.abc import Callable
from dataclasses import replace

from nnmpi.config import Config
from nnmpi.parallel import plan
from nnmpi.parallel.arrangement.arrange import arrange, stages_of
from nnmpi.parallel.arrangement.arrangement import Arrangement
from nnmpi.parallel.arrangement.cluster import Cluster
from nnmpi.parallel.arrangement.division import estimated_division
from nnmpi.parallel.arrangement.fewer import Fewer, arrange_fewer
from nnmpi.parallel.layout import mesh_of
from nnmpi.parallel.planning.paper import UNMEASURED
from nnmpi.run.setup.cutting import Uncut, sharding_of


def on_paper(uncut: Uncut, cluster: Cluster) -> Arrangement:
    """How ranks would be arranged; what a run measures is estimated."""
    config, graph = uncut.config, uncut.graph
    filled = replace(config, dp=mesh_of(config, cluster.size).axes["dp"])
    sharding = sharding_of(uncut._replace(config=filled))
    division = estimated_division(graph, stages_of(config), config.pp, config.cut)
    return arrange(config, cluster, graph, sharding, division, UNMEASURED)


def fitted(config: Config, ranks: int, uncut: Callable[[], Uncut]) -> Fewer:
    """The layout for so many ranks that is nearest to that of a config, and that its model can be
    divided for.

    `uncut` is asked for the model only where fewer ranks than one copy of it takes are there.
    """

    def divide(fewer: Config, working: int) -> None:
        on_paper(uncut()._replace(config=fewer), Cluster.on_paper(working))

    return arrange_fewer(config, ranks, plan.check, divide)
