"""Reproducible training: the tree over slices, and the same bits for any number of ranks."""

import math
from functools import cache
from typing import Any

import numpy as np
import pytest
from helpers.datafiles import refused
from helpers.training.laws_slices import RUNS, Trained, trained

import nnmpi
from nnmpi import Config, Trainer, nn
from nnmpi import data as datasets
from nnmpi.addons.checks.reduction_tree import Action, TreeMove, moves
from nnmpi.autograd.recording import recording
from nnmpi.comm import Comm
from nnmpi.comm import thread_ranks as threads
from nnmpi.io.output import NullReport
from nnmpi.schedules.lists.chain import Chain
from nnmpi.schedules.lists.race import Race
from nnmpi.schedules.lists.step_list import ScheduleError, StepList
from nnmpi.schedules.op import Kind, Op

# ---- the tree, on paper


def owners(slices: int, ranks: int) -> list[int]:
    return [r for r in range(ranks) for _ in range(slices * r // ranks, slices * (r + 1) // ranks)]


def carried_out(slices: int, ranks: int) -> tuple[list[list[str]], list[int]]:
    """What is on each rank's stack at the end, by name, and the most that was there.

    Whoever sends waits until the other receives, as MPI may have it: what waits for ever is left.
    """
    left = [moves(owners(slices, ranks), r) for r in range(ranks)]
    stacks: list[list[str]] = [[] for _ in left]
    most = [0] * ranks
    moved = True
    while moved:
        moved = False
        for r, todo in enumerate(left):
            while todo and go(r, left, stacks):
                moved = True
                most = [max(m, len(s)) for m, s in zip(most, stacks, strict=True)]
    assert not any(left), f"{slices} slices on {ranks} ranks wait for ever: {left}"
    return stacks, most


def go(r: int, left: list[list[TreeMove]], stacks: list[list[str]]) -> bool:
    """Rank r's next move, with that of the rank which it meets; not what another one starts."""
    action, other = left[r][0]
    if action is Action.LEAF:
        stacks[r].append(str(other))
    elif action is Action.ADD:
        right = stacks[r].pop()
        stacks[r].append(f"({stacks[r].pop()}+{right})")
    elif left[other][:1] == [TreeMove(Action.RECEIVE, r)] and action is Action.SEND:
        stacks[other].append(stacks[r].pop())
        left[other].pop(0)
    else:
        return False
    left[r].pop(0)
    return True


@pytest.mark.parametrize("slices", [*range(1, 18), 64])
def test_one_tree_wherever_slices_live(slices: int) -> None:
    (whole,), _ = carried_out(slices, 1)
    for ranks in range(1, min(slices, 17) + 1):
        stacks, most = carried_out(slices, ranks)
        assert stacks == [whole, *([] for _ in range(ranks - 1))]
        assert max(most) <= math.ceil(math.log2(slices)) + 1


def test_the_tree_of_five_slices() -> None:
    assert carried_out(5, 2) == ([["((0+1)+(2+(3+4)))"], []], [2, 3])


def test_ranks_that_both_send_first_are_a_deadlock() -> None:
    """MPI may let a send wait for its receive."""

    def first(kinds: tuple[Kind, Kind], peer: int) -> StepList:
        ops = tuple(Op(kind, at=0, peer=peer) for kind in kinds)
        return StepList(Chain.of_whole_stages((0,), 0), (), 0, ops, ends=())

    send, receive = Kind.SEND_SUM, Kind.RECV_SUM
    Race([[first((send, receive), 1), first((receive, send), 0)]]).run()
    with pytest.raises(ScheduleError, match=r"deadlock: ranks wait at SEND_SUM0 \(pp 0, dp 0\)"):
        Race([[first((send, receive), 1), first((send, receive), 0)]]).run()


# ---- the same bits


@cache
def run(name: str, slices: int, ranks: int) -> list[Trained]:
    return threads.run(ranks, trained, name, slices)


COUNTS = [*((8, p) for p in (1, 3, 4)), *((5, p) for p in (1, 2, 5)), (1, 1)]
MORE = [pytest.param(*more, marks=pytest.mark.long) for more in ((8, 2), (8, 8), (5, 3))]


@pytest.mark.one_in(2)
@pytest.mark.parametrize(("slices", "ranks"), [*COUNTS, *MORE])
@pytest.mark.parametrize("name", RUNS)
def test_the_same_bits_on_any_number_of_ranks(name: str, slices: int, ranks: int) -> None:
    (one,), many = run(name, slices, 1), run(name, slices, ranks)
    assert {t.state for t in many} == {one.state}
    assert all((t.losses, t.test) == (one.losses, one.test) for t in many)
    most = math.ceil(math.log2(slices)) + 1
    assert one.buffers == most
    assert all(1 <= t.buffers <= most for t in many)


def test_other_slices_give_other_bits() -> None:
    """Or the tests above could not fail."""
    assert len({run("iris", slices, 1)[0].state for slices in (1, 5, 8)}) == 3


@pytest.mark.parametrize("name", ["iris", "digits"])
def test_one_slice_has_the_bits_of_a_run_without_slices(name: str) -> None:
    (usual,) = threads.run(1, lambda comm: trained(comm, name, 1, reproducible=False, steps=9))
    (one,) = threads.run(1, lambda comm: trained(comm, name, 1, steps=9))
    assert one == usual


@pytest.mark.parametrize("ranks", [1, 3])
def test_slices_train_as_one_batch_does(ranks: int) -> None:
    def state(comm: Comm, reproducible: bool) -> dict[str, np.ndarray]:
        config = {**RUNS["iris"], "dtype": "float64", "epochs": 9, "steps": 10}
        trainer = Trainer(Config(reproducible=reproducible, **config), comm=comm)
        trainer.fit(NullReport())
        return trainer.model.state_dict()

    (usual,) = threads.run(1, state, False)
    for mine in threads.run(ranks, state, True):
        for name, value in mine.items():
            assert np.abs(value - usual[name]).max() < 1e-12 * np.abs(usual[name]).max()


# ---- what is special in a model


def normed() -> nn.Module:
    return nn.Sequential(nn.BatchNorm1d(4), nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 3))


def fit(comm: Comm, report: NullReport | None = None, **options: Any) -> Trainer:
    usual: dict[str, Any] = {"model": "iris-mlp", "data": "iris", "epochs": 50, "steps": 1}
    build = options.pop("build", None)
    trainer = Trainer(Config(reproducible=True, **{**usual, **options}), build, comm=comm)
    trainer.fit(report or NullReport())
    return trainer


@pytest.mark.parametrize(("batch", "slices"), [(50, 8), (50, 5), (7, 3), (2, 1)])
@pytest.mark.parametrize("ranks", [1, 3])
def test_running_statistics_see_the_whole_batch(batch: int, slices: int, ranks: int) -> None:
    def norm(comm: Comm) -> tuple[np.ndarray, np.ndarray, int, np.ndarray]:
        trainer = fit(comm, build=normed, batch_size=batch, slices=slices, dtype="float64")
        first = trainer.model.state_dict()
        x = trainer.train.gather(next(trainer.train.batches(0))).x
        return first["0.running_mean"], first["0.running_var"], first["0.num_batches_tracked"], x

    for mean, var, tracked, x in threads.run(min(ranks, slices), norm):
        np.testing.assert_allclose(mean, 0.1 * x.mean(0), rtol=1e-12, atol=1e-15)
        np.testing.assert_allclose(var, 0.9 + 0.1 * x.var(0, ddof=1), rtol=1e-12)
        assert tracked == 1


@pytest.mark.parametrize(
    ("batch", "steps", "slices", "last"), [(8, 1, 8, 8), (50, 3, 11, 20), (116, 9, 3, 4)]
)
@pytest.mark.parametrize("ranks", [1, 3])
def test_a_slice_of_one_sample_has_no_variance_and_that_is_said_before_the_first_step(
    batch: int, steps: int, slices: int, last: int, ranks: int
) -> None:
    """Of 120 samples, in the last batch of an epoch too, on every rank."""
    begun: list[int] = []

    class Noted(nn.BatchNorm1d):
        def forward(self, x: nnmpi.Tensor) -> nnmpi.Tensor:
            begun.extend([1] * (self.training and recording.get() is True))  # not set-up
            return super().forward(x)

    def rank(comm: Comm) -> None:
        options = {"batch_size": batch, "steps": steps, "slices": slices}
        model = nn.Sequential(Noted(4), nn.Linear(4, 3))
        words = (f"of 120 in batches of {batch}", f"a batch of {last} is cut into {slices} slices")
        with refused("Noted needs more than one sample", *words, "other --slices or another"):
            fit(comm, build=lambda: model, **options)

    threads.run(ranks, rank)
    assert not begun


class Sometimes(nn.Module):
    """Uses `rare` only for slices whose first sample is large."""

    def __init__(self) -> None:
        self.fc, self.rare, self.never = nn.Linear(4, 3), nn.Linear(4, 3), nn.Linear(4, 3)

    def forward(self, x: nnmpi.Tensor) -> nnmpi.Tensor:
        y = self.fc(x)
        return y + self.rare(x) if len(x.data) and x.data[0, 0] > 0.5 else y


class Stops(Sometimes):
    """Wishes during its fourth step to end the run."""

    trainer: Trainer | None = None

    def forward(self, x: nnmpi.Tensor) -> nnmpi.Tensor:
        if self.training and self.trainer is not None and self.trainer.step == 3:
            self.trainer.stop()
        return super().forward(x)


def test_a_rank_without_samples_can_end_the_run() -> None:
    """Of the last 4 samples in 8 slices on 8 ranks, rank 0 has none."""
    x, y = datasets.load("iris").train
    first = (x[:28], y[:28], x, y)

    def steps(comm: Comm) -> int:
        config = Config(reproducible=True, batch_size=8)
        trainer = Trainer(config, Stops, first, comm)
        if comm.rank == 0:
            trainer.model.trainer = trainer
        assert trainer.fit(NullReport())["event"] == "stopped"
        return trainer.step

    assert threads.run(8, steps) == [4] * 8


def test_verify_finds_no_difference_at_all() -> None:
    def differences(comm: Comm) -> dict[str, float]:
        options = {**RUNS["digits"], "steps": 4, "reproducible": True, "verify": True}
        found: dict[str, float] = Trainer(Config(**options), comm=comm).fit(NullReport())[
            "largest_differences"
        ]
        return found

    for found in threads.run(3, differences):
        assert found
        assert set(found.values()) == {0.0}
