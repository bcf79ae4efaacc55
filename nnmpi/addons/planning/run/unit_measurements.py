"""Measures the seconds of units: whole on each rank, and divided among ranks along tp."""

from collections.abc import Sequence
from contextlib import closing, suppress

import numpy as np

from nnmpi.addons.planning.machine import MeasuredModel, UnitTimes
from nnmpi.addons.planning.run.deadline import OutOfTimeError
from nnmpi.addons.planning.run.measurements import ROUNDS, Fields, Node, session_of
from nnmpi.addons.planning.unit_times import signature
from nnmpi.comm import OtherRankError
from nnmpi.parallel.agreement import gather_objects
from nnmpi.parallel.arrangement.division import work
from nnmpi.parallel.arrangement.partition import units
from nnmpi.parallel.recorder import Recorder, current_recorder
from nnmpi.parallel.unit_costs import Timing, profile
from nnmpi.run.session import Session
from nnmpi.run.setup.setup import Setup


class ComputeClock(Recorder):
    """A clock of computing alone: it stops while a rank exchanges activations."""

    waited = 0.0

    def add(self, name: str, began: float, micro: int = -1, stage: int = -1) -> None:
        self.waited += self.now() - began

    def __call__(self) -> float:
        """Returns the seconds so far in which the rank was computing."""
        return self.now() - self.waited


def whole_units(node: Node, session: Session, sizes: Sequence[int], fields: Fields) -> None:
    """Measures the seconds of each unit, which each rank computes alone, for micro-batches of these
    sizes; also the multiply-adds per second."""
    try:
        _units(node, session, sizes, fields)
    finally:
        for model in fields.get("models", ()):
            fields["speed"] = _speed(session, model)


def tp_units(node: Node, setup: Setup, tp: int, sizes: Sequence[int], fields: Fields) -> None:
    """Measures the seconds of each unit that `tp` ranks divide among them; does nothing if the
    model cannot be divided so."""
    try:
        session = session_of(setup, node.comm, tp=tp)
    except (ValueError, OtherRankError):  # on all ranks
        return
    with closing(session):
        _units(node, session, sizes, fields)


def _units(node: Node, session: Session, sizes: Sequence[int], fields: Fields) -> None:
    """Measures the seconds of each unit, or of a rank's part of it, as the mean over ranks.

    Raises OutOfTimeError if there was no time for some sizes. The measured sizes count
    nevertheless, if there are two from which others can be interpolated."""
    graph, config = session.arrangement.graph, session.config
    ends_first = [*dict.fromkeys((sizes[-1], sizes[0], *sizes))]
    rounds: dict[int, list[list[list[float]]]] = {n: [] for n in ends_first}
    with suppress(OutOfTimeError):
        for n in ends_first * ROUNDS:
            rounds[n].append(_mean_units(node, session, n))
    times = {
        n: [UnitTimes(*row) for row in np.min(rounds[n], axis=0).tolist()]
        for n in sizes
        if rounds[n]
    }
    late = ", ".join(str(n) for n in sizes if n not in times)
    if late and len(times) < 2:
        raise OutOfTimeError
    model = MeasuredModel(signature(graph), config.tp, config.dtype, times)
    fields["models"] = (*fields.get("models", ()), model)
    if late:
        how = f" with --tp {config.tp}" if config.tp > 1 else ""
        raise OutOfTimeError(f"units of {config.model} in micro-batches of {late}{how}")


def _mean_units(node: Node, session: Session, samples: int) -> list[list[float]]:
    """Measures the seconds of each unit's forward pass, input gradient and weight gradient; returns
    the mean over ranks."""
    graph, setup = session.arrangement.graph, session.setup
    x = setup.train.gather(np.arange(samples) % len(setup.train.split.y)).x
    node.check()
    clock = ComputeClock()
    token = current_recorder.set(clock)
    try:
        costs = profile(
            *(session.model, graph, units(graph), x, setup.on),
            Timing(together=(node.comm,), clock=clock, check=node.check),
            session.config.dtype,
        )
    finally:
        current_recorder.reset(token)
    rows = [[cost.forward, cost.input_gradient, cost.weight_gradient] for cost in costs]
    means: list[list[float]] = np.mean(gather_objects(node.comm, rows), axis=0).tolist()
    return means


def _speed(session: Session, measured: MeasuredModel) -> float:
    """Returns the multiply-adds per second that the forward passes of all layers reach together."""
    graph, n = session.arrangement.graph, max(measured.units)
    seconds = sum(unit.forward for unit in measured.units[n])
    multiplied = n * sum(work(graph, node) for node in graph.nodes)
    return multiplied / seconds
