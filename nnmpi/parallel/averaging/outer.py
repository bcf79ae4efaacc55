"""Local steps: replicas make H steps alone; then an outer optimizer applies their mean change.

    replica 0   theta ─ H steps ─► theta 0 ─┐
    replica 1   theta ─ H steps ─► theta 1 ─┴─► g = mean(theta - theta r)   ─► theta, on all

    sgd         theta -= lr g                        lr 1: the mean of the replicas
    nesterov    m = mu m + g,  theta -= lr (g + mu m)

Stich 2019 (local SGD); Douillard et al. 2023 (DiLoCo).
"""

from nnmpi.optim import Optimizer
from nnmpi.optim.optimizer import ReplicaState
from nnmpi.parallel.averaging.means import ReplicaValues
from nnmpi.parallel.layout import Layout
from nnmpi.parallel.recorder import waiting
from nnmpi.parallel.stores.local import LocalStore
from nnmpi.parallel.strategy import TrainSpec

MOMENTUM = "outer_momentum"
"""The name of the outer optimizer's state, equal on all replicas."""


class OuterOptimizer:
    """Applies the mean change of all replicas to the values that they began a round with."""

    def __init__(
        self, layout: Layout, spec: TrainSpec, store: LocalStore, optimizer: Optimizer
    ) -> None:
        config = spec.arrangement.config
        self._lr, self._mu = config.outer_lr, config.outer_momentum
        self._has_momentum = config.outer == "nesterov" and self._mu > 0
        self._replica, self._optimizer = ReplicaValues(layout, spec, store, optimizer), optimizer
        dp = layout.axis["dp"]
        optimizer.replica_state = ReplicaState(dp.rank, dp.size, optimizer.sums)
        if self._has_momentum:
            optimizer.add_state(MOMENTUM)

    def begin(self) -> None:
        """Keeps the values that a round begins with."""
        self._start = self._replica.values()

    def after_step(self) -> None:
        """Does nothing: replicas make the steps of a round alone."""

    def meet(self) -> None:
        """Replaces the values of all replicas by the result of an outer step."""
        start = self._start
        g = start - self._replica.values()
        with waiting("sums"):
            self._replica.average(g)
            self._replica.average_buffers()
        # no message from here on. If a rank is lost above, all begin the round again (`LastRound`);
        # a replica that has ended the round already is the newest version, and the others take it
        if self._has_momentum:
            m = self._optimizer.state[MOMENTUM]
            m *= self._mu
            m += g
            g += self._mu * m
        start -= self._lr * g
        self._replica.assign(start)
