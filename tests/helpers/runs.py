"""Small data, a small model and a run of a Trainer, for several test files."""

import hashlib
import io
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np

from nnmpi import Config, Trainer, nn
from nnmpi import data as datasets
from nnmpi.comm import Comm
from nnmpi.comm import thread_ranks as threads
from nnmpi.data import Dataset
from nnmpi.io.output import Event, NullReport, Report
from nnmpi.nn.models import mlp

LAYOUTS: dict[str, tuple[int, dict[str, Any]]] = {
    "ring": (2, {"allreduce": "ring"}),
    "shared": (3, {"allreduce": "shared"}),
    "zero 1": (2, {"zero": 1}),
    "zero 2": (2, {"zero": 2}),
    "zero 3": (3, {"zero": 3}),
    "tp": (2, {"tp": 2}),
    "pipeline": (2, {"pp": 2, "micro_batches": 2}),
    "3D": (8, {"dp": 2, "tp": 2, "pp": 2, "allreduce": "ring"}),
    "slices": (2, {"reproducible": True, "slices": 4}),
    "verify": (2, {"verify": True}),
}
"""Ranks and options of every kind of layout, but for servers."""


def rows(n: int = 70, features: int = 6, classes: int = 3) -> tuple[np.ndarray, np.ndarray]:
    """Overlapping clouds of points, one for each class, around 100."""
    rng, y = np.random.default_rng(1), np.arange(n) % classes
    return rng.standard_normal((n, features)) + y[:, None] + 100, y


def images() -> Dataset:
    return datasets.load("synthetic:1x8x8:10:90", seed=3)


def small() -> nn.Sequential:
    return mlp(6, 8, 3)


def trainer_of(
    comm: Comm,
    options: Mapping[str, Any],
    build: Callable[[], nn.Module] = small,
    data: Any = None,
    **arguments: Any,
) -> Trainer:
    """A Trainer of a small model in float64, with these options and arguments besides."""
    config = Config(**{"epochs": 2, "batch_size": 28, "dtype": "float64", **options})
    return Trainer(config, build, rows() if data is None else data, comm, **arguments)


def trained(ranks: int, options: Mapping[str, Any], *model: Any, **arguments: Any) -> list[Event]:
    """The last event of each rank of a run of such a Trainer."""

    def rank(comm: Comm) -> Event:
        with trainer_of(comm, options, *model, **arguments) as trainer:
            return trainer.fit(NullReport())

    return threads.run(ranks, rank)


def fit(trainer: Trainer) -> Event:
    return trainer.fit(Report(stdout=io.StringIO()))


def equal(a: nn.Module, b: nn.Module) -> None:
    theirs = b.state_dict()
    for name, array in a.state_dict().items():
        np.testing.assert_array_equal(array, theirs[name], err_msg=name, strict=True)


def but_steps(events: Iterable[Event]) -> list[Event]:
    """The events but those of steps, of which short runs have one a step, and those that tell
    whether passes are replayed."""
    return [event for event in events if event["event"] not in ("step", "passes")]


def parameters_sha256(model: nn.Module) -> str:
    """The hash of a model's parameters, as in the last event of a run."""
    digest = hashlib.sha256()
    for p in model.parameters():
        digest.update(np.ascontiguousarray(p.array).tobytes())
    return digest.hexdigest()
