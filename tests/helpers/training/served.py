"""Runs with a parameter server on threads, and what holds at the end of each."""

import time
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest
from helpers import turns

import nnmpi
from nnmpi import Config, Trainer, nn
from nnmpi.autograd.recording import recording
from nnmpi.comm import Comm
from nnmpi.comm import thread_ranks as threads
from nnmpi.io.output import Event, NullReport
from nnmpi.nn.models import mlp
from nnmpi.nn.passes import current_pass

IRIS = {"model": "iris-mlp", "data": "iris", "batch_size": 50}
DIGITS = {"model": "digits-cnn", "data": "digits", "batch_size": 37}


class Ended(NamedTuple):
    """The last event of a rank, and its model."""

    result: Event
    state: dict[str, np.ndarray]


def fit(comm: Comm, config: Config, *parts: Any) -> Ended:
    with Trainer(config, *parts, comm=comm) as trainer:
        return Ended(trainer.fit(NullReport()), trainer.model.state_dict())


def run(ranks: int, **options: Any) -> list[Ended]:
    return turns.run(ranks, fit, Config(**options))


def check_ranks_agree(ended: list[Ended]) -> None:
    """All ranks, servers too, end with the same bits and the same results."""
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


class Noted(nn.Module):
    """Calls `note` with the number of the step before each training pass."""

    def __init__(self, note: Callable[[int], None]) -> None:
        self.net, self.note = mlp(6, 8, 3), note

    def forward(self, x: nnmpi.Tensor) -> nnmpi.Tensor:
        now = current_pass.get()
        if self.training and now is not None and recording.get() is True:  # not in set-up
            self.note(now.step)
        return self.net(x)


def run_paced(
    ranks: int,
    slow: Callable[[int], int],
    fast: Callable[[int], int],
    made: Callable[[int], int] = lambda c: 0,
    **options: Any,
) -> tuple[list[Ended], Any]:
    """Worker 0 computes its step c after all others have begun step slow(c) and the last server has
    made made(c) updates; the others compute theirs after it has begun step fast(c).

    Also returns (c, the step of the fastest other worker a moment later), for each c.
    """
    config = Config(batch_size=40, epochs=2, lr=0.05, **options)
    begun, seen = [-1] * (ranks - max(config.servers, 1)), []
    servers = list[Trainer]()  # the last one

    def note(rank: int, step: int) -> None:
        begun[rank] = step
        if rank:
            wait(lambda: begun[0] >= fast(step))
        else:
            wait(lambda: min(begun[1:]) >= slow(step))
            wait(lambda: made(step) == 0 or servers[0].optimizer.steps[0] >= made(step))
            time.sleep(0.02)  # time in which a worker that must wait would go on if it did not
            seen.append((step, max(begun[1:])))

    def wait(true: Callable[[], bool]) -> None:
        limit = time.monotonic() + 200
        while not true():
            assert time.monotonic() < limit, f"workers have begun the steps {begun}"
            time.sleep(1e-3)

    def rank(comm: Comm) -> Ended:
        model = lambda: Noted(lambda step: note(comm.rank, step))  # noqa: E731
        with Trainer(config, model, clouds(240), comm=comm) as trainer:
            if comm.rank == ranks - 1:
                servers.append(trainer)
            return Ended(trainer.fit(NullReport()), trainer.model.state_dict())

    return threads.run(ranks, rank), seen
