"""One training run of benchmarks/communication.py, whose ranks are threads, and its result."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import nnmpi
from lib.communication.ways import Subject, Way
from nnmpi import comm, data
from nnmpi.comm import Comm
from nnmpi.data import Dataset
from nnmpi.io.output import NullReport

BEFORE = 3e-3
"""The rate of the steps that one rank makes first."""


class Point(NamedTuple):
    """The loss on the test samples after a step."""

    step: int
    loss: float


class RunResult(NamedTuple):
    """The result of a run; bytes and messages are those that a replica sends in a step, in the mean
    over replicas and steps, as the run has counted them."""

    curve: list[Point]
    train_loss: float  # of the last epoch
    nbytes: float
    messages: float

    @property
    def loss(self) -> float:
        """The loss on the test samples at the end."""
        return self.curve[-1].loss


class Curve:
    """A callback that evaluates after every so many steps, but for the last ones."""

    def __init__(self, every: int) -> None:
        self._every, self.points = every, list[Point]()

    def on_step(self, trainer: nnmpi.Trainer, event: Mapping[str, Any]) -> None:
        if trainer.step % self._every == 0 and trainer.step < trainer.total_steps:
            self.points.append(Point(trainer.step, trainer.evaluate().mean_loss))


def config_of(subject: Subject, way: Way, seed: int, load: str | None = None) -> nnmpi.Config:
    """The options of a run, whose messages go round a ring where they are summed."""
    options = subject.of(way)
    return nnmpi.Config(**options, steps=subject.steps, seed=seed, allreduce="ring", load=load)


def weights(subject: Subject, dataset: Dataset, file: str) -> str | None:
    """Writes the weights that all runs begin with, if one rank trains them before."""
    if not subject.before:
        return None
    options = {**subject.options, "lr": BEFORE, "lr_schedule": "warmup:30+constant"}
    config = nnmpi.Config(**options, steps=subject.before, save=file)

    def train(c: Comm) -> None:
        with nnmpi.Trainer(config, data=dataset, comm=c) as trainer:
            trainer.fit(NullReport())

    if not Path(file).exists():
        comm.threads(1, train)
    return file


def run(
    subject: Subject, dataset: Dataset, way: Way, replicas: int, seed: int, load: str | None = None
) -> RunResult:
    """Train on ranks that are threads, one a replica; `load` are the weights to begin with."""
    config = config_of(subject, way, seed, load)

    def train(c: Comm) -> tuple[Curve, Mapping[str, Any]]:
        curve = Curve(subject.every)
        with nnmpi.Trainer(config, data=dataset, comm=c, callbacks=[curve]) as trainer:
            return curve, trainer.fit(NullReport())

    curve, event = comm.threads(replicas, train)[0]
    sent = [rank["sent"]["dp"] for rank in event["measured"]]
    return RunResult(
        [*curve.points, Point(event["steps"], event["test_loss"])],
        event["loss"],
        sum(part["bytes"] for part in sent) / replicas,
        sum(part["messages"] for part in sent) / replicas,
    )


def dataset_of(subject: Subject, data_dir: str | None) -> Dataset:
    """The samples of a subject, with as many of the test samples as it is evaluated on."""
    known = nnmpi.Config(**subject.options)
    dataset = data.load(known.data, data_dir=data_dir, context=known.context)
    x, y = (part[: subject.tested] for part in dataset.test)
    return dataset._replace(test=data.Split(x, y))
