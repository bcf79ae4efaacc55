"""Runs with a parameter server, on threads, and what holds at the end of each."""

from typing import Any, NamedTuple

import numpy as np
import pytest

from nnmpi import Config, Trainer
from nnmpi.comm import Comm, threads
from nnmpi.report import Event, Silence

IRIS = {"model": "iris-mlp", "data": "iris", "batch_size": 50}
DIGITS = {"model": "digits-cnn", "data": "digits", "batch_size": 37}
MESSAGES, MEMORY = 1, None  # ranks on a node: one, or all


class Ended(NamedTuple):
    """What a rank ends with."""

    result: Event
    state: dict[str, np.ndarray]


def fit(comm: Comm, config: Config, *parts: Any) -> Ended:
    trainer = Trainer(config, *parts, comm=comm)
    return Ended(trainer.fit(Silence()), trainer.model.state_dict())


def run(ranks: int, per_node: int | None = MEMORY, **options: Any) -> list[Ended]:
    return threads.run(ranks, fit, Config(**options), per_node=per_node)


def alike(ended: list[Ended]) -> None:
    """All ranks, servers too, end with the same bits, and tell the same of the whole."""
    first = ended[0]
    for other in ended[1:]:
        for name, array in first.state.items():
            np.testing.assert_array_equal(other.state[name], array, err_msg=name, strict=True)
        for key in ("event", "steps", "test_loss", "accuracy", "staleness", "parameters_sha256"):
            assert other.result[key] == first.result[key]
        assert other.result["loss"] == pytest.approx(first.result["loss"], rel=1e-12)


def pushes(result: Event) -> int:
    return sum(sum(counts.values()) for counts in result["staleness"].values())


def clouds(n: int) -> tuple[np.ndarray, ...]:
    rng, y = np.random.default_rng(1), np.arange(n) % 3
    x = rng.standard_normal((n, 6)) / 3 + np.eye(3, 6)[y]
    return x, y, x, y
