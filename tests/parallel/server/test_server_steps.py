"""The steps of a parameter server: learning rates, clocks, communicators, parts of one sample."""

from threading import get_ident
from typing import Any

import numpy as np
import pytest
from helpers.comm.counted import Counted
from helpers.datafiles import refused
from helpers.training.served import (
    DIGITS,
    IRIS,
    Noted,
    check_ranks_agree,
    clouds,
    fit,
    run,
    run_paced,
)

import nnmpi
from nnmpi import Config, Trainer, nn
from nnmpi.autograd.recording import recording
from nnmpi.comm import Comm, comm_self
from nnmpi.comm import thread_ranks as threads
from nnmpi.data import Load
from nnmpi.nn.models import mlp
from nnmpi.optim import Optimizer
from nnmpi.parallel.step.executor import Executor, StepResult, StepState

# ---- learning rates


@pytest.mark.parametrize(("sync", "staleness"), [("asp", 0), ("ssp", 2)])
def test_the_learning_rate_follows_the_pushes_of_all_workers(
    sync: str, staleness: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Worker 1 is far ahead, by its own clock; 24 pushes are 12 steps of 2 workers."""
    rates: list[float] = []
    step = Optimizer.step

    def noted(optimizer: Optimizer, lr_factor: float) -> None:
        rates.append(optimizer.lr * lr_factor)
        step(optimizer, lr_factor)

    monkeypatch.setattr(Optimizer, "step", noted)
    ahead = staleness or 10
    ended, _ = run_paced(
        3,
        lambda c: c + ahead if not c else 0,
        lambda c: 0,
        sync=sync,
        staleness=staleness,
        lr_schedule="step:1:0.5",
    )
    check_ranks_agree(ended)
    assert rates == [0.05 * 0.5 ** (i // 2) for i in range(24)]


# ---- clocks


def test_the_clock_of_a_worker_runs_on_from_epoch_to_epoch(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The fast one makes 11 steps in each epoch of 6 batches, all by its own endless sequence."""
    found: dict[int, list[list[int]]] = {}
    run_load = Executor.run

    def noted(executor: Executor, load: Load, state: StepState, batches: int) -> StepResult:
        found.setdefault(get_ident(), []).append(load.rows.tolist())
        return run_load(executor, load, state, batches)

    monkeypatch.setattr(Executor, "run", noted)
    run_paced(3, lambda c: 10 + 11 * c, lambda c: c // 11, sync="asp")
    loader = Trainer(Config(batch_size=40), lambda: mlp(6, 8, 3), clouds(240), comm_self()).train
    batches = [rows.tolist() for epoch in range(4) for rows in loader.batches(epoch)]
    assert sorted(found.values(), key=len) == [batches[:2], batches[:22]]


def test_a_batch_of_which_a_worker_has_no_samples_counts_as_its_step() -> None:
    """So the random numbers of a batch do not depend on the worker. Every third batch has one
    sample."""
    begun: list[set[int]] = [set(), set(), set()]  # the server computes nothing
    config = Config(batch_size=2, epochs=4, sync="ssp", staleness=1)

    def rank(comm: Comm) -> None:
        fit(comm, config, lambda: Noted(begun[comm.rank].add), clouds(5))

    threads.run(3, rank)
    _, some, every = sorted(begun, key=len)
    assert every >= {0, 1, 2, 3, 4}
    assert some >= {0, 1, 3, 4}
    assert not any(step % 3 == 2 for step in some)


# ---- communicators


@pytest.mark.parametrize(
    ("ranks", "case", "options", "parts"),
    [
        (4, IRIS, {"servers": 1}, 3),
        (4, IRIS, {"servers": 2}, 4),
        (4, IRIS, {"servers": 3}, 3),
        (2, IRIS, {"servers": 1}, 0),
        (5, DIGITS, {"servers": 2, "sync": "asp"}, 5),
    ],
)
def test_groups_of_several_ranks_have_a_comm_that_is_freed(
    ranks: int,
    case: dict[str, Any],
    options: dict[str, Any],
    parts: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    counted = Counted(monkeypatch)
    check_ranks_agree(run(ranks, **case, **options, steps=3))
    assert len(counted.taken["split"]) == parts
    assert not counted.left


# ---- parts of one sample


def normed() -> nn.Sequential:
    return nn.Sequential(nn.Linear(6, 4), nn.BatchNorm1d(4), nn.Linear(4, 3))


REFUSED = [
    (
        {"batch_size": 3, "sync": "asp"},
        "a batch of 3 is cut into 3 x 1 parts (workers x micro-batches),",
    ),
    (
        {"batch_size": 47, "sync": "asp", "micro_batches": 2},
        "a batch of 5 is cut into 3 x 2 parts ",
    ),
    ({"batch_size": 79, "sync": "ssp", "staleness": 1, "steps": 2}, "a batch of 3 is cut"),
    ({"batch_size": 239, "sync": "asp"}, "a batch of 1 is left; use another"),
]


@pytest.mark.parametrize(("options", "says"), REFUSED, ids=str)
@pytest.mark.parametrize("servers", [1, 2])
def test_a_worker_with_one_sample_is_refused_before_the_first_step(
    options: dict[str, Any], says: str, servers: int
) -> None:
    begun: list[int] = []

    class Watched(nn.Sequential):
        def forward(self, x: nnmpi.Tensor) -> nnmpi.Tensor:
            begun.extend([1] * (self.training and recording.get() is True))  # not set-up
            return super().forward(x)

    def rank(comm: Comm) -> None:
        config = Config(epochs=2, **{"micro_batches": 1} | options, servers=servers)
        words = "BatchNorm1d needs more than one sample: of 240", says, "another --batch-size"
        with refused(*words):
            fit(comm, config, lambda: Watched(*normed().children()), clouds(240))

    threads.run(3 + servers, rank)
    assert not begun


@pytest.mark.parametrize(
    "options",
    [
        {"batch_size": 3, "servers": 1},  # statistics are of the whole batch
        {"batch_size": 6, "sync": "asp"},
        {"batch_size": 50, "sync": "asp"},
        {
            "batch_size": 79,
            "sync": "ssp",
            "staleness": 1,
            "steps": 1,
        },  # the last batch is not reached
    ],
    ids=str,
)
def test_a_worker_with_more_than_one_sample_is_not(options: dict[str, Any]) -> None:
    def rank(comm: Comm) -> float:
        ended = fit(comm, Config(epochs=1, **{"steps": 6} | options), normed, clouds(240))
        return float(ended.result["loss"])

    assert np.isfinite(threads.run(4, rank)).all()
