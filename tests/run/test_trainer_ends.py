"""The end of a run: after its steps, by a stop, by an error; and what is saved."""

import io
import json
import threading
from collections.abc import Generator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.runs import fit, rows, small

import nnmpi
from nnmpi import Config, Trainer, nn
from nnmpi.data import Load, Loader
from nnmpi.run.fit import DivergedError
from nnmpi.run.report import Event, LostOutputError, Report


@pytest.mark.parametrize("steps", [1, 3, 4, 5, 99])
def test_steps_are_counted_over_epochs(steps: int) -> None:
    result = fit(Trainer(Config(epochs=2, steps=steps, batch_size=14), small, rows()))
    assert (result["event"], result["steps"]) == ("done", min(steps, 8))
    assert result["epochs"] == (1 if steps <= 4 else 2)


@pytest.mark.parametrize("after", [0, 2])
def test_stop_ends_the_run_after_the_current_step(after: int, tmp_path: Path) -> None:
    path = tmp_path / "m.safetensors"
    trainer = Trainer(Config(batch_size=14, save=str(path)), small, rows())

    class Stops(Report):
        def progress(self, step: int, total: int, loss: float, samples_per_second: float) -> None:
            if step == after:
                trainer.stop()

    if after == 0:
        trainer.stop()
    result = trainer.fit(Stops(stdout=io.StringIO()))
    assert (result["event"], result["steps"], result["epochs"]) == ("stopped", max(after, 1), 1)
    assert result["accuracy"] == trainer.evaluate().means["accuracy"]
    saved = nnmpi.load(path)
    for name, array in trainer.model.state_dict().items():
        np.testing.assert_array_equal(saved[name], array, err_msg=name)


@pytest.mark.parametrize("weight", [np.nan, 1e38])
def test_a_loss_that_is_not_finite_ends_the_run(weight: float, tmp_path: Path) -> None:
    def wild() -> nn.Module:
        model = small()
        for p in model.parameters():
            p.data[...] = weight
        return model

    log, save = tmp_path / "log", tmp_path / "m.safetensors"
    trainer = Trainer(Config(lr=0.25, log=str(log), save=str(save)), wild, rows())
    words = r"\Athe loss became (inf|nan) at step 1 with learning rate 0.25; try --lr 0.025, --clip"
    with pytest.raises(DivergedError, match=words):
        trainer.fit()
    assert not save.exists()
    assert [json.loads(line)["event"] for line in log.read_text().splitlines()] == [
        "start",
        "failed",
    ]


def test_a_run_that_loses_its_output_saves_the_model(tmp_path: Path) -> None:
    class Lost(Report):
        def event(self, event: Event) -> None:
            if event["event"] == "epoch":
                raise LostOutputError("gone")

    path = tmp_path / "m.safetensors"
    trainer = Trainer(Config(batch_size=14, save=str(path)), small, rows())
    with pytest.raises(LostOutputError, match="gone"):
        trainer.fit(Lost(stdout=io.StringIO()))
    assert trainer.step == 4
    saved = nnmpi.load(path)
    for name, array in trainer.model.state_dict().items():
        np.testing.assert_array_equal(saved[name], array, err_msg=name)


class Breaks(nn.Linear):
    """Works for a few samples, with which a Trainer records a model."""

    def forward(self, x: nnmpi.Tensor) -> nnmpi.Tensor:
        if len(x) > 20:
            raise RuntimeError("broken")
        return super().forward(x)


def test_an_error_of_the_model_is_the_last_event_of_the_log(tmp_path: Path) -> None:
    log = tmp_path / "log"
    trainer = Trainer(Config(), lambda: Breaks(6, 3), rows())
    with pytest.raises(RuntimeError, match="broken"):
        trainer.fit(Report(str(log), stdout=io.StringIO()))
    last = json.loads(log.read_text().splitlines()[-1])
    assert last == {"event": "failed", "error": "broken", "steps": 0}


def test_a_test_loss_that_is_not_finite_ends_the_run() -> None:
    trainer = Trainer(Config(lr=1e30, optimizer="sgd", steps=1), small, rows())
    with pytest.raises(DivergedError, match=r"\Athe test loss became (inf|nan) at step 1 .*1e\+30"):
        fit(trainer)


@pytest.mark.parametrize("split", ["train", "test"])
def test_a_run_that_fails_leaves_no_thread(split: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A thread gathers large data; it ends even while its generator is still referenced."""
    x = np.zeros((4400, 1000), "float32")
    y = np.arange(4400) % 2
    trainer = Trainer(Config(), lambda: Breaks(1000, 2), (x, y, x, y))
    assert trainer.train.prefetch
    assert trainer.test.prefetch
    held, loads = [], Loader.loads

    def hold(*arguments: Any, **named: Any) -> Generator[Load, None, None]:
        held.append(loads(*arguments, **named))
        return held[-1]

    monkeypatch.setattr(Loader, "loads", hold)
    with pytest.raises(RuntimeError, match="broken"):
        fit(trainer) if split == "train" else trainer.evaluate()
    assert len(held) == 1
    assert not [t for t in threading.enumerate() if t.name.startswith("nnmpi-prefetch")]
