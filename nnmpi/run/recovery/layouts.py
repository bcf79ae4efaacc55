"""The layouts of runs that fit themselves to their ranks, and what such a run says."""

from collections.abc import Callable

from nnmpi.comm import Comm
from nnmpi.nn.graph import Graph
from nnmpi.options.config import Config
from nnmpi.options.quoting import shown
from nnmpi.parallel import strategies
from nnmpi.parallel.agreement import all_or_none
from nnmpi.parallel.arrangement.cluster import Cluster
from nnmpi.parallel.arrangement.division import Division
from nnmpi.parallel.arrangement.partition import given_units
from nnmpi.parallel.recovery.fitted_layout import FittedLayout, fit_layout
from nnmpi.parallel.stage_cut import EQUAL, division_of
from nnmpi.run.setup.cutting import UncutModel, on_cluster


def layout_of_job(config: Config, comm: Comm) -> FittedLayout:
    """The layout that is nearest to the options, for the ranks of the job; every rank calls it."""
    return all_or_none(comm, lambda: fit_layout(config, comm.size, strategies.check))


def fitted(config: Config, ranks: int, uncut: Callable[[], UncutModel]) -> FittedLayout:
    """The layout nearest to a config's that so many ranks can have and that the model can be
    divided for.

    It calls `uncut` for the model only if the ranks are fewer than one copy of the model takes.
    """

    def divide(fewer: Config, working: int) -> None:
        on_cluster(uncut()._replace(config=fewer), Cluster.on_paper(working), even_division)

    return fit_layout(config, ranks, strategies.check, divide)


def even_division(config: Config, graph: Graph) -> Division:
    """The stages of a model if all units cost the same, where only the arrangement of ranks
    counts."""
    units, _ = given_units(None, graph, 1)
    return division_of(config, graph, units, lambda: [EQUAL] * len(units))


def no_checkpoint(log: str) -> str:
    """A note on a run of --elastic that follows, in its log, one that left no checkpoint."""
    return f"no checkpoint of the run in {shown(log)}: another run follows it there"
