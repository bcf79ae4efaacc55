"""The end of a run: after its steps, by a stop, by an error; and what is saved."""

import io
from pathlib import Path

import numpy as np
import pytest
from helpers.runs import fit, rows, small

import nnmpi
from nnmpi import Config, Trainer
from nnmpi.io.output import Report


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
