"""One training run of benchmarks/sync.py, and its result."""

import argparse
import time
from collections import Counter
from collections.abc import Generator
from contextlib import closing
from typing import Any, NamedTuple

import numpy as np

import nnmpi
from lib.sync.model import Case, Mode
from nnmpi import data, nn
from nnmpi.comm import Comm
from nnmpi.data import Dataset, Loader
from nnmpi.io.output import NullReport
from nnmpi.parallel.step.executor import StepResult, StepState
from nnmpi.parallel.strategy import Strategy

COLD = 4  # the first 1/COLD of the steps of a run is not timed


def without_batchnorm() -> nn.Sequential:
    """digits-cnn without BatchNorm."""
    return nn.Sequential(
        *(nn.Conv2d(1, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(32, 64, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Flatten(), nn.Dropout(0.25), nn.Linear(256, 10)),
    )


class TimedStrategy:
    """A strategy that measures its samples and seconds, without the first `cold` steps."""

    def __init__(self, strategy: Strategy, cold: int) -> None:
        self._strategy, self._cold = strategy, cold
        self.samples, self.seconds = 0, 0.0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._strategy, name)

    def steps(self, loader: Loader, start: StepState) -> Generator[StepResult, None, None]:
        """The steps of the strategy: those of all workers, as this rank is informed of them."""
        began: float | None = None
        with closing(self._strategy.steps(loader, start)) as steps:
            for done in steps:
                if began is not None:
                    self.samples += done.samples
                    self.seconds = time.perf_counter() - began
                elif done.state.step >= self._cold:
                    began = time.perf_counter()
                yield done


class Entry(NamedTuple):
    """One mode in one case."""

    case: Case
    mode: Mode


class RunResult(NamedTuple):
    """The result of a run; samples and seconds are those of the timed steps."""

    samples: int
    seconds: float
    accuracy: float
    staleness: Counter[int]  # of the gradients of all workers

    @property
    def rate(self) -> float:
        """Samples per second."""
        return self.samples / self.seconds

    @property
    def mean_staleness(self) -> float:
        """The mean over all gradients."""
        return sum(s * n for s, n in self.staleness.items()) / max(self.staleness.total(), 1)


def run(comm: Comm, entry: Entry, seed: int, a: argparse.Namespace) -> RunResult | None:
    """Run one training on all ranks; None on a rank that takes no part."""
    workers = comm.size - 1
    with_server = entry.mode.servers > 0
    part = comm if with_server else comm.split(0 if comm.rank < workers else None)
    result = None if part is None else _train(part, workers, entry, seed, a)
    sleeping_barrier(comm)
    return result


def _train(comm: Comm, workers: int, entry: Entry, seed: int, a: argparse.Namespace) -> RunResult:
    case, mode = entry
    config = nnmpi.Config(
        model=a.model or "digits-cnn",
        batch_size=a.batch,
        steps=a.steps,
        epochs=1,
        lr=2e-3,
        lr_schedule="constant",
        seed=seed,
        sync=mode.sync,
        staleness=mode.staleness,
        servers=mode.servers,
        slow_rank=case.slow_ranks(workers, a.base),
        jitter=case.jitter,
        allreduce=_allreduce(comm, mode),
    )
    build = None if a.model else without_batchnorm
    trainer = nnmpi.Trainer(config, build, digits(a.steps * a.batch), comm)
    session = trainer.session
    session.strategy = timed = TimedStrategy(session.strategy, a.steps // COLD)
    event = trainer.fit(NullReport())
    staleness: Counter[int] = Counter()
    for counts in event.get("staleness", {}).values():
        staleness.update({int(s): n for s, n in counts.items()})
    return RunResult(timed.samples, timed.seconds, event["accuracy"], staleness)


def _allreduce(comm: Comm, mode: Mode) -> str:
    """`ring` on several hosts, where `auto` would tune itself within a step and slow that down."""
    return "auto" if mode.servers or len(comm.node()) == comm.size else "ring"


def digits(samples: int) -> Dataset:
    """The digits, repeated to at least `samples` for training."""
    one = data.load("digits")
    times = -(-samples // len(one.train.y))
    x, y = (np.concatenate([a] * times) for a in one.train)
    return one._replace(train=data.Split(x, y))


def sleeping_barrier(comm: Comm) -> None:
    """A barrier that sleeps, so that waiting ranks take no core from computing ones."""
    work = comm.start(np.zeros(1), "doubling")
    while not work.poll():
        time.sleep(1e-3)
