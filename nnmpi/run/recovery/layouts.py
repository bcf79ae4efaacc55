"""Layouts that are fitted to the number of ranks (--elastic, and after a loss), and a note on
them."""

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
    """Returns the layout for the ranks of the job that is nearest to the options; every rank calls
    it."""
    return all_or_none(comm, lambda: fit_layout(config, comm.size, strategies.check))


def fitted(config: Config, ranks: int, uncut: Callable[[], UncutModel]) -> FittedLayout:
    """Returns the layout nearest to a config's that `ranks` ranks can have and whose division the
    model allows.

    It calls `uncut`, to make the model, only if the ranks are fewer than one replica needs.
    """

    def divide(fewer: Config, working: int) -> None:
        on_cluster(uncut()._replace(config=fewer), Cluster.on_paper(working), even_division)

    return fit_layout(config, ranks, strategies.check, divide)


def even_division(config: Config, graph: Graph) -> Division:
    """Divides a model into stages as if all units cost the same, where only the arrangement of
    ranks matters."""
    units, _ = given_units(None, graph, 1)
    return division_of(config, graph, units, lambda: [EQUAL] * len(units))


def no_checkpoint(log: str) -> str:
    """Returns a note for a run of --elastic whose log contains an earlier run that left no
    checkpoint."""
    return f"no checkpoint of the run in {shown(log)}: another run follows it there"
