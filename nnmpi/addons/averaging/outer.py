"""Local steps: replicas make H steps alone; then an outer optimizer applies their mean change.

    replica 0   theta ─ H steps ─► theta 0 ─┐
    replica 1   theta ─ H steps ─► theta 1 ─┴─► g = mean(theta - theta r)   ─► theta, on all

    sgd         theta -= lr g                        lr 1: the mean of the replicas
    nesterov    m = mu m + g,  theta -= lr (g + mu m)

With fragments (parts of the model; streaming), layers are exchanged one fragment after the other,
and replicas continue while a fragment is sent:

    sent after 2 steps, applied after 3      theta r ── 2 steps ─► s ── a step ─► v
                                             theta of the fragment: as above, g = mean(theta - s)
                                             replica r continues from theta + (v - s)

So each change of a replica is in exactly one mean. Between two rounds of steps the parameters of
all replicas are theta. Stich 2019 (local SGD); Douillard et al. 2023 (DiLoCo), 2025 (streaming,
which continues from a mix of theta and v).
"""

from typing import NamedTuple

from nnmpi.addons.averaging.fragments import fragments, local_steps
from nnmpi.addons.averaging.means import OwnValues, ReplicaValues
from nnmpi.arrays.backend import Array
from nnmpi.optim import Optimizer
from nnmpi.optim.replica_state import ReplicaState
from nnmpi.optim.state import STEP
from nnmpi.parallel.layout import Layout
from nnmpi.parallel.recorder import waiting
from nnmpi.parallel.stores.local import LocalStore
from nnmpi.parallel.strategy import TrainSpec
from nnmpi.parallel.wire import Transfer

MOMENTUM = "outer_momentum"
"""The name of the outer optimizer's state, equal on all replicas."""


class PendingMean(NamedTuple):
    """A mean over replicas that is being computed.

    g       a flat array: this replica's change of its parameters, which the mean replaces
    values  the parameters when the message was sent, if steps follow before the mean is applied;
            else None
    """

    g: Array
    values: Array | None
    mean: Transfer


class Fragment:
    """Parameters that replicas exchange together, and their exchange in progress, if any.

    sent, applied   in each period of H steps: after which step the parameters are sent, and after
                    which step the received mean is applied
    """

    def __init__(self, replica: ReplicaValues, sent: int, applied: int) -> None:
        self.replica, self.sent, self.applied = replica, sent, applied
        self.is_due = True  # to be sent in this round
        self.in_flight: PendingMean | None = None

    def send(self, start: Array) -> None:
        """Starts the mean of the replicas' changes since the round's `start`."""
        g = self.replica.values()
        values = g.copy() if self.sent < self.applied else None
        for here, span, _ in self.replica.operands():
            g[here] = start[span] - g[here]
        self.is_due, self.in_flight = False, PendingMean(g, values, self.replica.start_average(g))


class OuterOptimizer:
    """Applies the mean change of all replicas to their common values at the beginning of a
    round."""

    def __init__(
        self, layout: Layout, spec: TrainSpec, store: LocalStore, optimizer: Optimizer
    ) -> None:
        config, dp = spec.arrangement.config, layout.axis["dp"]
        schedule, parts = local_steps(config), fragments(spec.arrangement.graph, config.fragments)
        self._lr, self._mu = config.outer_lr, config.outer_momentum
        self._has_momentum = config.outer == "nesterov" and self._mu > 0
        self._optimizer = optimizer
        self._replica = ReplicaValues(layout, spec, store, optimizer)
        # with all layers at once and no delay, replicas are equal after a round
        is_plain = schedule == schedule._replace(fragments=1, apply_after=0)
        self._own = None if is_plain else OwnValues(self._replica, optimizer)
        optimizer.replica_state = ReplicaState(dp.rank, dp.size, (*optimizer.state_names, STEP))
        if self._has_momentum:
            optimizer.add_state(MOMENTUM)
        self._fragments = list[Fragment]()
        for i in range(config.fragments):
            paths = [p.place.path for p in optimizer.parameters]
            members = {j for j, path in enumerate(paths) if parts[path] == i}
            if members:  # a stage of a pipeline may have none
                part = ReplicaValues(layout, spec, store, optimizer, members)
                applied = schedule.applied(i)
                self._fragments.append(Fragment(part, applied - schedule.apply_after, applied))

    def begin(self) -> None:
        """Begins a round of steps: stores the values with which all replicas begin."""
        self._start = self._own.resume() if self._own else self._replica.values()
        for fragment in self._fragments:
            fragment.is_due = True

    def after_step(self, number: int) -> None:
        """Sends, and applies, the fragments that are due after step `number` of the period."""
        for fragment in self._fragments:
            if fragment.sent == number:
                fragment.send(self._start)
            if fragment.applied == number:
                self._apply(fragment)

    def poll(self) -> None:
        """Makes progress with the exchanges of fragments that are being sent."""
        for fragment in self._fragments:
            if fragment.in_flight is not None:
                fragment.in_flight.mean.poll()

    def meet(self) -> None:
        """Ends a round: exchanges and applies all fragments, and sets the parameters to values that
        are equal on all replicas. If a rank is lost, the others go back to the start of the round,
        unless all ranks have ended it (`RoundUndo`)."""
        for fragment in self._fragments:
            self._apply(fragment)
        for fragment in self._fragments:
            if fragment.is_due:
                fragment.send(self._start)
                self._apply(fragment)
        with waiting("sums"):
            self._replica.average_buffers()
        if self._own:
            self._own.show(self._start)

    def _apply(self, fragment: Fragment) -> None:
        """Applies a fragment's mean change to the common values, if it was sent."""
        if fragment.in_flight is None:
            return
        g, values, mean = fragment.in_flight
        fragment.in_flight = None
        with waiting("sums"):
            mean.wait()
        replica, theta = fragment.replica, self._start
        for here, span, _ in replica.operands():
            if self._has_momentum:
                m = self._optimizer.state[MOMENTUM][span]
                m *= self._mu
                m += g[here]
                g[here] += self._mu * m
            theta[span] -= self._lr * g[here]
            g[here] = theta[span]
        if values is not None:
            g += replica.values() - values
        replica.assign(g)
