"""Steps of several ranks, each with a GPU, of which hosts read the outcome one step late."""

from functools import partial
from typing import Any, NamedTuple

import numpy as np
import pytest
from emulator import machine
from helpers.device import DEVICE, device_count, needs_emulator
from helpers.training.on_device import on_device
from helpers.training.pipelined import Heard, contents, digits, first_difference

from nnmpi import Config, Trainer, nn
from nnmpi.addons.nccl import nccl
from nnmpi.comm import Comm
from nnmpi.comm import thread_ranks as threads
from nnmpi.optim import loss_scale
from nnmpi.parallel.replicas.bucket_sums import BucketSums

pytestmark = needs_emulator  # which has as many devices as there are ranks


class Reader:
    """A callback that may read all after each step, so that all ranks wait for it."""

    def on_step(self, trainer: Any, event: Any) -> None:
        pass


class Ran(NamedTuple):
    losses: list[float]
    steps: int
    skipped: int
    state: dict[str, np.ndarray]


def plain(comm: Comm) -> nn.Module:
    return nn.Sequential(
        *(nn.Conv2d(1, 3, 3), nn.BatchNorm2d(3), nn.ReLU(), nn.Flatten()), nn.Linear(108, 10)
    )


class Uneven(nn.Module):
    """A model of which one layer is used by no rank in some steps, and by one in others."""

    def __init__(self, comm: Comm) -> None:
        self.flat, self.seldom, self.last = nn.Flatten(), nn.Linear(64, 64), nn.Linear(64, 10)
        self.comm, self.step = comm, 0

    def forward(self, x: Any) -> Any:
        y, is_step = self.flat(x), self.training and isinstance(x.data, DEVICE.xp.ndarray)
        self.step += is_step
        uses = not is_step or self.step % 3 == 1 + self.comm.rank
        return self.last(self.seldom(y) if uses else y)


def run(
    comm: Comm, build: Any, *callbacks: object, heard: Heard | None = None, **options: Any
) -> Ran:
    config = Config(**{"epochs": 2, "batch_size": 24, "lr": 0.01, "clip_norm": 0.5, **options})
    heard, model = heard or Heard(), partial(build, comm)
    trainer = Trainer(config, model, digits(), comm, callbacks=callbacks)
    assert trainer.arrangement.algorithm == "nccl"
    if isinstance(heard, Stopper):
        heard.trainer = trainer
    done = trainer.fit(heard)
    assert first_difference(trainer.session.part, trainer.comm) is None
    return Ran(heard.losses, done["steps"], done["skipped_steps"], dict(contents(trainer)))


@pytest.mark.one_in(2)
@pytest.mark.parametrize("build", [plain, Uneven])
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_a_late_outcome_changes_no_bit(
    dtype: str, build: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor in float16, where steps are skipped, nor if some ranks do not use a parameter."""
    scale = loss_scale.LossScale(2.0**22, is_dynamic=True)
    if dtype == "float16":
        monkeypatch.setattr(loss_scale.LossScale, "of", lambda dtype: scale)

    def both(comm: Comm) -> None:
        late, now = (run(comm, build, *given, dtype=dtype) for given in ((), (Reader(),)))
        assert late.losses == now.losses
        assert late.skipped == now.skipped
        assert (now.skipped > 0) == (dtype == "float16")
        for name, values in late.state.items():
            assert values.tobytes() == now.state[name].tobytes(), name

    with device_count(2), on_device():
        threads.run(2, both)


class Stopper(Heard):
    """Asks for the end when it hears of a step, as a signal does."""

    trainer: Trainer

    def progress(self, step: int, *rest: Any) -> None:
        super().progress(step, *rest)
        if step == 3:
            self.trainer.stop()


def test_a_rank_that_stops_ends_all_after_one_step() -> None:
    def steps(comm: Comm) -> tuple[int, int]:
        done = run(comm, plain, heard=Stopper() if comm.rank else Heard())
        return done.steps, len(done.losses)

    with device_count(2), on_device():
        first, second = threads.run(2, steps)
    assert first == second
    assert first[0] == first[1] < 8


class StopsLogged:
    """A callback that stops the run on one rank, after a step that the log reports."""

    def on_log(self, trainer: Trainer, event: Any) -> None:
        if event["step"] == 4 and trainer.comm.rank:
            trainer.stop()


def test_a_callback_stops_all_after_its_step_though_outcomes_are_late() -> None:
    with device_count(2), on_device():
        ended = threads.run(2, lambda comm: run(comm, plain, StopsLogged(), log_every=2).steps)
    assert ended == [4, 4]


class Noted(Heard):
    """Notes what is called from the third step to the seventh, of which nothing else reads."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[str, str]] = []

    def progress(self, step: int, *rest: Any) -> None:
        super().progress(step, *rest)
        if step in (3, 7):
            self.calls = machine.notes(goes_on=step == 3)


@pytest.mark.one_in(2)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_host_waits_for_no_step_that_it_has_just_made(
    dtype: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor for statistics of BatchNorm over ranks, nor for sums of gradients, which it does not ask
    for either, except between operations."""
    polls: list[nccl.Launched] = []

    def done(sums: nccl.Launched) -> bool:
        polls.append(sums)
        return True

    monkeypatch.setattr(nccl.Launched, "done", property(done))
    monkeypatch.setattr(BucketSums, "poll", lambda sync: None)

    def kinds(comm: Comm) -> set[str]:
        heard = Noted() if comm.rank == 0 else Heard()
        run(comm, plain, heard=heard, dtype=dtype, steps=9, batch_size=4)
        return {kind for kind, _ in heard.calls} if isinstance(heard, Noted) else set()

    with device_count(2), on_device():
        noted = threads.run(2, kinds)[0]
    assert {"kernel", "library", "late wait"} <= noted
    assert "wait" not in noted
    assert not polls
