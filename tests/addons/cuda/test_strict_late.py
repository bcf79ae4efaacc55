"""Steps of which the host reads the outcome one step late, beside steps that wait for it."""

import shutil
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from helpers.device import DEVICE, needs_device
from helpers.training.pipelined import Heard, Noted

import nnmpi
from nnmpi import nn
from nnmpi.arrays import backend
from nnmpi.comm import comm_self
from nnmpi.optim import loss_scale

pytestmark = needs_device
EPOCHS, STEPS = 3, 6  # of an epoch


@pytest.fixture(autouse=True)
def _on_device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backend, "get", lambda device: DEVICE)


class Reader:
    """A callback that may read all after each step, so that all waits for it."""

    def __init__(self) -> None:
        self.scales: list[float] = []

    def on_step(self, trainer: Any, event: Any) -> None:
        self.scales.append(event.get("loss_scale", 1.0))


class Run(NamedTuple):
    losses: list[float]
    told: list[list[float | None]]  # by the event of each step
    skipped: int
    state: dict[str, np.ndarray]  # of the model and of the optimizer


def data() -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    return rng.standard_normal((STEPS * 8, 2, 6, 6)).astype("float32"), np.arange(STEPS * 8) % 4


def model() -> nn.Module:
    return nn.Sequential(
        *(nn.Conv2d(2, 3, 3), nn.BatchNorm2d(3), nn.ReLU(), nn.Flatten()),
        *(nn.Linear(48, 5), nn.Dropout(0.2), nn.Linear(5, 4)),
    )


def run(*callbacks: object, **options: Any) -> Run:
    given: dict[str, Any] = {"epochs": EPOCHS, "batch_size": 8, "lr": 0.01, **options}
    heard, names = Heard(), ("step", "loss", "gradient_norm", "lr")
    trainer = nnmpi.Trainer(
        nnmpi.Config(**given), model, (*data(), *data()), comm_self(), callbacks=callbacks
    )
    done = trainer.fit(heard)
    told = [[e.get(name) for name in names] for e in heard.events if e["event"] == "step"]
    state = {name: t.numpy() for name, t in trainer.model.state_dict().items()}
    state |= {**trainer.optimizer_state_dict()}
    return Run(heard.losses, told, done["skipped_steps"], state)


@pytest.mark.one_in(16)
@pytest.mark.parametrize("clip_norm", [None, 0.5])
@pytest.mark.parametrize("optimizer", ["adam", "adamw", "sgd", "rmsprop"])
@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16"])
def test_a_late_outcome_changes_no_bit(
    dtype: str, optimizer: str, clip_norm: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not in float16 either, where the scale is often too large, and steps are skipped."""
    monkeypatch.setattr(loss_scale, "GROWTH_INTERVAL", 2)
    scale = loss_scale.LossScale(2.0**18, is_dynamic=True)
    if dtype == "float16":
        monkeypatch.setattr(loss_scale.LossScale, "of", lambda dtype: scale)
    given = {"dtype": dtype, "optimizer": optimizer, "clip_norm": clip_norm}
    late, now = run(**given), run(reader := Reader(), **given)
    assert (late.losses, late.told) == (now.losses, now.told)
    assert late.skipped == now.skipped
    assert late.state.keys() == now.state.keys()
    for name, values in late.state.items():
        assert values.tobytes() == now.state[name].tobytes(), name
    if dtype == "float16":
        assert now.skipped > 3
        assert any(b > a for a, b in zip(reader.scales, reader.scales[1:], strict=False))


def test_a_checkpoint_has_the_step_that_was_made_last(tmp_path: Path) -> None:
    given: dict[str, Any] = {"checkpoint_dir": str(tmp_path), "save_every": "5", "keep": 9}
    whole = run(**given)
    for folder in tmp_path.glob("step-*[!5]"):
        shutil.rmtree(folder)
    resumed = run(resume=True, **given)
    assert (resumed.losses, resumed.told) == (whole.losses[15:], whole.told[15:])
    for name, values in resumed.state.items():
        assert values.tobytes() == whole.state[name].tobytes(), name


def test_a_run_may_end_within_an_epoch() -> None:
    assert run(steps=4).losses == run(Reader(), steps=4).losses


def test_a_run_that_is_stopped_knows_the_steps_that_it_has_made() -> None:
    """It is asked for the end when it tells of a step, as a signal does."""
    config = nnmpi.Config(epochs=2, batch_size=8)
    trainer = nnmpi.Trainer(config, model, (*data(), *data()), comm_self())
    done = trainer.fit(Noted(lambda step: step == 3 and trainer.stop()))
    state = trainer.optimizer_state_dict()
    assert {int(n) for path, n in state.items() if path.endswith("step")} == {done["steps"]}


def test_a_loss_that_is_not_finite_ends_the_run() -> None:
    with pytest.raises(ArithmeticError, match="the loss became"):
        run(lr=1e38, optimizer="sgd")
