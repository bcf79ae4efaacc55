"""Converts the exchanges between data-parallel replicas that a simulated round of steps has
recorded to the form from which their time and traffic are predicted. The replicas make steps alone,
and are averaged now and then (local SGD, gossip)."""

from nnmpi.collectives.algorithms import Collective
from nnmpi.collectives.gossip import GRAPHS
from nnmpi.options.config import Config
from nnmpi.parallel.arrangement.arrangement import Arrangement, Averages
from nnmpi.parallel.arrangement.exchanges import Exchange
from nnmpi.schedules.op import Kind


def _every(config: Config) -> int:
    every: int = config.every
    return every if config.sync == "local" else 1


def _copies(a: Arrangement) -> int:
    """Returns how many additional copies of its parameters a replica has in memory for exchanges:
    sent, received or stored."""
    copies: int = 2 + (a.config.apply_after > 0)
    if a.config.sync == "gossip":
        copies += len(GRAPHS[a.config.graph](a.mesh.axes["dp"]).offsets)
    return copies


def _priced(a: Arrangement, exchange: Exchange, replicas: tuple[int, ...]) -> Exchange:
    """Returns an exchange along dp of a simulated step in the form from which its time and traffic
    are predicted: as an exchange of parameters between replicas, during the update.

    All messages of a replica to its neighbours (gossip) become one exchange. Sums of gradients
    within a replica, along cp, are returned unchanged.
    """
    if exchange.during in (Kind.SUM, Kind.FINISH):  # within a replica, over cp
        return exchange
    agrees = exchange.operation is Collective.ALL_REDUCE and exchange.what == "scalars"
    what = "scalars" if agrees else "parameters"
    exchange = exchange._replace(what=what, during=Kind.APPLY)
    if a.config.sync == "local" or exchange.operation is not Collective.MESSAGE:
        return exchange
    return exchange._replace(
        operation=Collective.NEIGHBOURS,
        algorithm=a.config.graph,
        group=replicas,
        times=1,
    )


AVERAGES = Averages(_every, lambda config: config.apply_after, _copies, _priced)
