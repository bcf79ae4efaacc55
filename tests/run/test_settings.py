"""Settings that callbacks change in a run: the rate and other options, and requires_grad."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from helpers import runs
from helpers.runs import LAYOUTS

from nnmpi import Trainer, nn
from nnmpi.comm import Comm, comm_self
from nnmpi.comm import thread_ranks as threads
from nnmpi.io.output import Event, NullReport
from nnmpi.parallel.strategy import AgreedError

SERVERS: tuple[int, dict[str, Any]] = (3, {"sync": "bsp", "servers": 1})


class Change:
    """Calls a function after the first step or epoch, on one rank or on all."""

    def __init__(
        self, change: Callable[[Trainer], object], occasion: str = "step", rank: int | None = None
    ) -> None:
        self._change, self._rank = change, rank
        setattr(self, f"on_{occasion}", self._heard)

    def _heard(self, trainer: Trainer, event: Event) -> None:
        if event[event["event"]] == 1 and self._rank in (None, trainer.comm.rank):
            self._change(trainer)


def set_rate(trainer: Trainer) -> None:
    trainer.optimizer.lr = 0.3


def set_rate_of_group(trainer: Trainer) -> None:
    trainer.optimizer.param_groups[0]["lr"] = 0.3


def set_decay(trainer: Trainer) -> None:
    trainer.optimizer.param_groups[0]["weight_decay"] = 0.5


def freeze(trainer: Trainer) -> None:
    next(trainer.model.parameters()).requires_grad = False


def freeze_last(trainer: Trainer) -> None:
    [*trainer.model.parameters()][-1].requires_grad = False


CHANGES = [set_rate, set_rate_of_group, set_decay, freeze]


def trainer_of(comm: Comm, *callbacks: object, **options: Any) -> Trainer:
    plain = {"epochs": 3, "lr": 0.01, "lr_schedule": "step:3:0.5"}
    return runs.trainer_of(comm, {**plain, **options}, callbacks=callbacks)


def losses(ranks: int, options: Any, *callbacks: object) -> list[float]:
    """Of each epoch, for training and test samples."""
    found: list[float] = []

    def hear(trainer: Trainer, event: Event) -> None:
        if trainer.is_first:
            found.extend((event["loss"], event["test_loss"]))

    heard = SimpleNamespace(on_epoch=hear)
    threads.run(ranks, lambda c: trainer_of(c, *callbacks, heard, **options).fit(NullReport()))
    return found


@pytest.mark.one_in(8)
@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_change_after_a_step_trains_as_on_one_rank(layout: str, change: Any) -> None:
    wanted = losses(1, {}, Change(change))
    assert wanted != losses(1, {})
    assert losses(*LAYOUTS[layout], Change(change)) == pytest.approx(wanted, rel=1e-10)


@pytest.mark.one_in(3)
@pytest.mark.parametrize("change", CHANGES[:3], ids=lambda change: change.__name__)
def test_a_change_after_an_epoch_reaches_servers(change: Any) -> None:
    wanted = losses(1, {}, Change(change, "epoch"))
    assert wanted != losses(1, {})
    assert losses(*SERVERS, Change(change, "epoch")) == pytest.approx(wanted, rel=1e-10)


def spoil(trainer: Trainer) -> None:
    next(trainer.model.parameters()).data[:1] += 1


@pytest.mark.one_in(6)
@pytest.mark.parametrize("check_copies", [1, 4, 1000])
@pytest.mark.parametrize("layout", ["ring", "slices", "3D"])
def test_copies_that_differ_end_the_run(layout: str, check_copies: int, tmp_path: Any) -> None:
    """Rank 1 changes a weight after the first of 6 steps."""
    ranks, options = LAYOUTS[layout]
    path, at = tmp_path / "model.safetensors", min(max(check_copies, 2), 6)

    def job(comm: Comm) -> None:
        more = {"check_copies": check_copies, "save": str(path)}
        trainer = trainer_of(comm, Change(spoil, rank=1), **more, **options)
        wanted = f"after step {at} ranks .* and .* differ in 1.weight"
        with pytest.raises(AgreedError, match=wanted):
            trainer.fit(NullReport())

    threads.run(ranks, job)
    assert not path.exists()


def test_the_schedule_multiplies_the_rate_of_each_group() -> None:
    rates: list[float] = []
    noted = SimpleNamespace(on_step=lambda trainer, event: rates.append(trainer.last_lr))
    trainer_of(comm_self(), Change(set_rate), noted).fit(NullReport())
    assert rates == [0.3, 0.3, 0.3, 0.15, 0.15, 0.15]


@pytest.mark.one_in(6)
@pytest.mark.parametrize("layout", [name for name in LAYOUTS if name != "verify"])  # finds it too
@pytest.mark.parametrize("change", [set_rate, freeze_last], ids=lambda change: change.__name__)
def test_a_change_on_one_rank_ends_the_run(layout: str, change: Any) -> None:
    ranks, options = LAYOUTS[layout]
    if layout == "pipeline" and change is freeze_last:  # one rank alone has the last layer
        change = set_rate
    what = "lr of group 0 of the optimizer" if change is set_rate else "requires_grad of 3.bias"

    def job(comm: Comm) -> None:
        with pytest.raises(AgreedError, match=f"ranks .* differ in {what}: set the same value"):
            trainer_of(comm, Change(change, rank=ranks - 1), **options).fit(NullReport())

    threads.run(ranks, job)


@pytest.mark.parametrize("one_alone", [False, True])
def test_parameters_that_a_callback_adds_are_refused_on_several_ranks(one_alone: bool) -> None:
    def add(trainer: Trainer) -> None:
        trainer.optimizer.add_param_group({"params": [nn.Parameter(np.ones(2))]})

    def job(comm: Comm) -> None:
        with pytest.raises(AgreedError, match="add_param_group has"):
            trainer_of(comm, Change(add, rank=1 if one_alone else None)).fit(NullReport())

    threads.run(2, job)


@pytest.mark.one_in(4)
@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
def test_settings_go_on_in_another_layout(change: Any) -> None:
    def rearranged(trainer: Trainer) -> None:
        change(trainer)
        trainer.rearrange(zero=1)

    wanted = losses(1, {}, Change(change))
    assert losses(2, {}, Change(rearranged)) == pytest.approx(wanted, rel=1e-10)
