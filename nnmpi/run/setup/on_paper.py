"""Arrangements that nothing is built from: of a dry run, and of ranks that are left."""

from collections.abc import Callable

from nnmpi.config import Config
from nnmpi.parallel import plan
from nnmpi.parallel.arrangement.arrange import arrange
from nnmpi.parallel.arrangement.arrangement import Arrangement
from nnmpi.parallel.arrangement.cluster import Cluster
from nnmpi.parallel.arrangement.fewer import Fewer, arrange_fewer
from nnmpi.parallel.planning.machine import TYPICAL
from nnmpi.parallel.planning.paper import UNMEASURED
from nnmpi.parallel.planning.stage_cut import division_on_paper
from nnmpi.parallel.planning.unit_times import ModelTimes
from nnmpi.run.setup.cutting import Uncut, sharding_of


def on_paper(uncut: Uncut, cluster: Cluster) -> Arrangement:
    """How ranks would be arranged; what a run measures is estimated."""
    config, graph = uncut.config, uncut.graph
    division = division_on_paper(ModelTimes(graph, TYPICAL, config.dtype), config)
    return arrange(config, cluster, graph, sharding_of(uncut), division, UNMEASURED)


def fitted(config: Config, ranks: int, uncut: Callable[[], Uncut]) -> Fewer:
    """The layout for so many ranks that is nearest to that of a config, and that its model can be
    divided for.

    `uncut` is asked for the model only where fewer ranks than one copy of it takes are there.
    """

    def divide(fewer: Config, working: int) -> None:
        on_paper(uncut()._replace(config=fewer), Cluster.on_paper(working))

    return arrange_fewer(config, ranks, plan.check, divide)
