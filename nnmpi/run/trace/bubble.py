"""Idle time of a pipeline over the time that its ranks compute, measured and simulated.

Both count from the first forward to the last backward pass of a step, over all ranks:

    bubble = (ranks * makespan - computing) / computing

Where steps overlap (pipedream), an epoch is counted as one step, and its updates as computing.

The simulation runs the programs of the schedule with the mean time that each stage took for each
kind of pass, and the median time of the messages whose receivers were waiting already.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from nnmpi.config import Config
from nnmpi.mesh import Mesh
from nnmpi.run.trace.recording import which
from nnmpi.run.trace.waits import Traced, groups
from nnmpi.schedules import SCHEDULES, programs
from nnmpi.sim.pipeline import Costs, StageTimes, simulate

PASSES = ("F", "B", "I", "W", "RECOMPUTE")


class Time(NamedTuple):
    """Of all ranks of a pipeline."""

    idle: float
    computing: float


class Bubble(NamedTuple):
    """Idle time over computing time."""

    measured: float
    simulated: float


class Step(NamedTuple):
    """What is computed in a step, by all ranks of one pipeline."""

    events: np.ndarray
    net: np.ndarray

    @property
    def micro_batches(self) -> int:
        """How many the step had."""
        return 1 + int(self.events["micro"].max())


def bubble(found: Sequence[Traced], mesh: Mesh, config: Config) -> Bubble | None:
    """None without a pipeline, or if no step was recorded."""
    p = mesh.axes["pp"]
    if p == 1:
        return None
    measured, simulated = [Time(0, 0)], [Time(0, 0)]
    for ranks in groups(mesh, "pp"):
        own = [found[r] for r in ranks]
        steps, send = list(_steps(own, config)), _message(own)
        for m in {step.micro_batches for step in steps}:
            same = [step for step in steps if step.micro_batches == m]
            measured += [_time(step, p) for step in same]
            simulated += [_simulated(config, p, m, same, send)] * len(same)
    if len(measured) == 1:
        return None
    return Bubble(_ratio(measured), _ratio(simulated))


def _ratio(times: Sequence[Time]) -> float:
    return sum(t.idle for t in times) / sum(t.computing for t in times)


def _steps(pipeline: Sequence[Traced], config: Config) -> Iterator[Step]:
    overlap = SCHEDULES[config.schedule].update_each
    kinds = (*PASSES, "UPDATE") if overlap else PASSES
    chosen = [which(t.events, *kinds) for t in pipeline]
    numbers = [_epochs(t) if overlap else t.events["step"] for t in pipeline]
    events, net, number = (
        np.concatenate([column[i] for column, i in zip(columns, chosen, strict=True)])
        for columns in ([t.events for t in pipeline], [t.net for t in pipeline], numbers)
    )
    order = np.argsort(number, kind="stable")
    for at in np.split(order, np.flatnonzero(np.diff(number[order])) + 1) if len(order) else ():
        yield Step(events[at], net[at])


def _epochs(t: Traced) -> np.ndarray:
    """The epoch of each event: an evaluation comes after each."""
    epochs: np.ndarray = np.cumsum(which(t.events, "evaluate"))
    return epochs


def _time(step: Step, ranks: int) -> Time:
    computing = float(step.net.sum())
    makespan = float(step.events["ended"].max() - step.events["began"].min())
    return Time(ranks * makespan - computing, computing)


def _message(pipeline: Sequence[Traced]) -> float:
    """The median time of messages whose receivers were already waiting."""
    waited = [t.events["ended"] - t.arrived for t in pipeline]
    early = [(t.sent >= 0) & (t.arrived > t.events["began"]) for t in pipeline]
    times = np.concatenate([w[e] for w, e in zip(waited, early, strict=True)])
    return float(np.median(times)) if times.size else 0.0


def _simulated(config: Config, p: int, m: int, steps: Sequence[Step], send: float) -> Time:
    events = np.concatenate([step.events for step in steps])
    nets = np.concatenate([step.net for step in steps])
    stages = 1 + int(events["stage"].max())

    def mean(stage: int, *kinds: str) -> float:
        chosen = nets[which(events, *kinds) & (events["stage"] == stage)]
        return float(chosen.mean()) if chosen.size else 0.0

    updates = nets[which(events, "UPDATE")]
    update = float(updates.mean()) if updates.size else 0.0

    costs = [
        StageTimes(mean(s, "F", "RECOMPUTE"), mean(s, "B"), mean(s, "I"), mean(s, "W"))
        for s in range(stages)
    ]
    plan = programs(SCHEDULES[config.schedule], p, m, stages // p, config.recompute)
    result = simulate(plan, Costs(costs, send, update))
    computing = sum(result.busy)
    return Time(p * result.makespan - computing, computing)
