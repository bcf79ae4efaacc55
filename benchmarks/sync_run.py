"""For benchmarks/sync.py: one training of so many steps, and what came of it."""

import argparse
import time
from collections import Counter
from collections.abc import Generator
from contextlib import closing
from typing import Any, NamedTuple

import numpy as np
from paces import Case, Mode

import nnmpi
from nnmpi import data, nn
from nnmpi.comm import Comm
from nnmpi.data import Dataset, Loader
from nnmpi.parallel.executor import Stepped
from nnmpi.parallel.strategy import Strategy
from nnmpi.run.report import Silence

COLD = 4  # one part in so many of a run is not timed


def plain() -> nn.Sequential:
    """digits-cnn without BatchNorm."""
    return nn.Sequential(
        *(nn.Conv2d(1, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(32, 64, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Flatten(), nn.Dropout(0.25), nn.Linear(256, 10)),
    )


class Timed:
    """A strategy, and what it did in which time; steps up to `cold` are left out."""

    def __init__(self, strategy: Strategy, cold: int) -> None:
        self._strategy, self._cold = strategy, cold
        self.samples, self.seconds = 0, 0.0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._strategy, name)

    def steps(self, loader: Loader, epoch: int) -> Generator[Stepped, None, None]:
        """Those of the strategy: what all workers have done, as this rank learns of it."""
        began: float | None = None
        with closing(self._strategy.steps(loader, epoch)) as steps:
            for done in steps:
                if began is not None:
                    self.samples += done.samples
                    self.seconds = time.perf_counter() - began
                elif done.step >= self._cold:
                    began = time.perf_counter()
                yield done


class Entry(NamedTuple):
    """One way to wait in one case."""

    case: Case
    mode: Mode


class Ran(NamedTuple):
    """What came of a run. Samples and seconds are those that were timed."""

    samples: int
    seconds: float
    accuracy: float
    staleness: Counter[int]  # of all workers' gradients

    @property
    def rate(self) -> float:
        """Samples a second."""
        return self.samples / self.seconds

    @property
    def mean_staleness(self) -> float:
        """Over all gradients."""
        return sum(s * n for s, n in self.staleness.items()) / max(self.staleness.total(), 1)


def run(comm: Comm, entry: Entry, seed: int, a: argparse.Namespace) -> Ran | None:
    """One training on all ranks; None on a rank that had no part in it."""
    workers = comm.size - 1
    with_server = entry.mode.servers > 0
    part = comm if with_server else comm.split(0 if comm.rank < workers else None)
    ran = None if part is None else _train(part, workers, entry, seed, a)
    patiently(comm)
    return ran


def _train(comm: Comm, workers: int, entry: Entry, seed: int, a: argparse.Namespace) -> Ran:
    case, mode = entry
    config = nnmpi.Config(
        model=a.model or "digits-cnn",
        batch_size=a.batch,
        steps=a.steps,
        epochs=1,
        seed=seed,
        sync=mode.sync,
        staleness=mode.staleness,
        servers=mode.servers,
        slow_rank=case.slow_ranks(workers, a.base),
        jitter=case.jitter,
        allreduce=_allreduce(comm, mode),
    )
    build = None if a.model else plain
    trainer = nnmpi.Trainer(config, build, digits(a.steps * a.batch), comm)
    trainer.strategy = timed = Timed(trainer.strategy, a.steps // COLD)
    event = trainer.fit(Silence())
    staleness: Counter[int] = Counter()
    for counts in event.get("staleness", {}).values():
        staleness.update({int(s): n for s, n in counts.items()})
    return Ran(timed.samples, timed.seconds, event["accuracy"], staleness)


def _allreduce(comm: Comm, mode: Mode) -> str:
    """On several hosts auto would try what is fastest within a step, which makes the step slow."""
    return "auto" if mode.servers or len(comm.node()) == comm.size else "ring"


def digits(samples: int) -> Dataset:
    """So many at least for training, each one several times."""
    one = data.load("digits")
    times = -(-samples // len(one.train.y))
    x, y = (np.concatenate([a] * times) for a in one.train)
    return one._replace(train=data.Split(x, y))


def patiently(comm: Comm) -> None:
    """Waits until all ranks have come, without taking a core from those that compute."""
    work = comm.start(np.zeros(1), "doubling")
    while not work.poll():
        time.sleep(1e-3)
