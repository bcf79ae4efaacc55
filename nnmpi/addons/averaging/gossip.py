"""Gossip: after each step a replica takes the mean of its values and those of its neighbours.

    ring of 4   theta_r <- (theta_r + theta_{r-1} + theta_{r+1}) / 3

Replicas always differ. At the end of a round (a number of steps, see `rounds.py`) the parameters of
all are set to the mean, and each replica stores its difference from the mean; the next round
continues from the replica's own values. Lian et al. 2017 (D-PSGD).
"""

from nnmpi.addons.averaging.means import OwnValues, ReplicaValues
from nnmpi.collectives.gossip import GRAPHS
from nnmpi.optim import Optimizer
from nnmpi.optim.replica_state import ReplicaState
from nnmpi.optim.state import STEP
from nnmpi.parallel.layout import Layout
from nnmpi.parallel.recorder import waiting
from nnmpi.parallel.stores.local import LocalStore
from nnmpi.parallel.strategy import TrainSpec
from nnmpi.parallel.wire import wire_of


class Gossiping:
    """Averages a replica's parameters with its neighbours' after each step."""

    def __init__(
        self, layout: Layout, spec: TrainSpec, store: LocalStore, optimizer: Optimizer
    ) -> None:
        dp = layout.axis["dp"]
        self._replica = ReplicaValues(layout, spec, store, optimizer)
        self._own = OwnValues(self._replica, optimizer)
        optimizer.replica_state = ReplicaState(dp.rank, dp.size, (*optimizer.state_names, STEP))
        graph = GRAPHS[spec.arrangement.config.graph](dp.size)
        self._peers, self._weight = graph.exchanges(dp.rank), float(graph.weight)
        self._on, self._wire = spec.task.on, wire_of(dp, spec.task.on)

    def begin(self) -> None:
        """Begins a round: from the mean of all replicas to this one's values."""
        self._own.resume()

    def after_step(self, number: int) -> None:
        """Replaces this replica's values by the mean of its own and its neighbours' values."""
        values = self._replica.values()
        received = [self._on.xp.empty_like(values) for _ in self._peers]
        with waiting("sums"):
            works = [
                self._wire.irecv(row, peers.source)
                for row, peers in zip(received, self._peers, strict=True)
            ]
            works += [self._wire.isend(values, peers.to) for peers in self._peers]
            for work in works:
                work.wait()
        self._replica.assign(self._weight * sum(received, start=values))

    def poll(self) -> None:
        """Does nothing: no exchange is in flight during a step."""

    def meet(self) -> None:
        """Ends a round: keeps the difference from the mean, and shows the mean."""
        mean = self._replica.values()
        with waiting("sums"):
            self._replica.average(mean)
            self._replica.average_buffers()
        self._own.show(mean)
