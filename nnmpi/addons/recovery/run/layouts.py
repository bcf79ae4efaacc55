"""Fits the layout to the ranks there are: --elastic, or after a loss."""

from collections.abc import Callable

from nnmpi.addons.recovery.parallel.fitted_layout import FittedLayout, fit_layout
from nnmpi.comm import Comm
from nnmpi.nn.graph import Graph
from nnmpi.options.config import Config
from nnmpi.options.quoting import shown
from nnmpi.parallel import strategies
from nnmpi.parallel.agreement import all_or_none
from nnmpi.parallel.arrangement.cluster import Cluster
from nnmpi.parallel.arrangement.division import Division
from nnmpi.parallel.arrangement.partition import given_units
from nnmpi.parallel.stage_cut import EQUAL, division_of
from nnmpi.run.setup.cutting import UncutModel, on_cluster


def layout_of_job(config: Config, comm: Comm) -> FittedLayout:
    """Returns the nearest possible layout of the job; every rank calls it."""
    return all_or_none(comm, lambda: fit_layout(config, comm.size, strategies.check))


def fitted(config: Config, ranks: int, uncut: Callable[[], UncutModel]) -> FittedLayout:
    """Returns the layout nearest to a config's for `ranks` ranks, among which the model can be
    divided. `uncut`, which makes the model, is called only if one replica needs more ranks."""

    def divide(fewer: Config, working: int) -> None:
        on_cluster(uncut()._replace(config=fewer), Cluster.on_paper(working), even_division)

    return fit_layout(config, ranks, strategies.check, divide)


def even_division(config: Config, graph: Graph) -> Division:
    """Divides a model as if units cost the same, where only ranks matter."""
    units, _ = given_units(None, graph, 1)
    return division_of(config, graph, units, lambda: [EQUAL] * len(units))


def no_checkpoint(config: Config) -> str:
    """Returns a note for the user of --elastic: the log contains an earlier run that has left no
    checkpoint, so this run begins anew."""
    return f"no checkpoint of the run in {shown(config.log)}: another run follows it there"
