"""A saved model as the start of another one: what fits is taken, and what does not is listed."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.commands import Command
from helpers.datafiles import refused
from helpers.runs import fit, rows, small

import nnmpi
from nnmpi import Config, Trainer, nn
from nnmpi.comm import Comm
from nnmpi.comm import thread_ranks as threads
from nnmpi.io.output import NullReport
from nnmpi.io.output.messages import as_text
from nnmpi.nn.models import mlp


def wider() -> nn.Sequential:
    """`small` with a head for more classes, and a layer after it."""
    return nn.Sequential(*mlp(6, 8, 5), nn.Linear(5, 4))


@pytest.fixture
def saved(tmp_path: Path) -> str:
    """A trained `small`, and a tensor that no model has."""
    trainer = Trainer(Config(steps=3, seed=5), small, rows())
    fit(trainer)
    path = str(tmp_path / "m.safetensors")
    state = {**trainer.model.state_dict(), "old.bias": np.ones(2, "float32")}
    nnmpi.save(state, path, trainer.standardiser.metadata())
    return path


def test_what_fits_is_taken_and_the_rest_drawn(saved: str) -> None:
    body = Trainer(Config(steps=1), wider, rows())
    config = Config(steps=1, load=saved, load_partial=True)
    trainer = Trainer(config, wider, rows())
    file, drawn, here = nnmpi.load(saved), body.model.state_dict(), trainer.model.state_dict()
    for name, value in here.items():
        wanted = file[name] if name.startswith("1.") else drawn[name]
        np.testing.assert_array_equal(value, wanted, err_msg=name)
    assert trainer.loaded is not None
    assert trainer.loaded._asdict() == {
        "file": saved,
        "loaded": ["1.weight", "1.bias"],
        "missing": ["4.weight", "4.bias"],
        "other_shapes": {"3.weight": ((3, 8), (5, 8)), "3.bias": ((3,), (5,))},
        "left_over": ["old.bias"],
    }
    text = as_text(trainer.describe())
    assert f"2 of the 6 tensors of the model are from {saved}" in text
    assert "  not in the file, so with initial values: 4.weight, 4.bias\n" in text
    assert "of another shape, so with initial values: 3.weight (3, 8) there, (5, 8) here" in text
    assert text.endswith("  left over in the file: old.bias")


def test_every_layout_takes_the_same(saved: str) -> None:
    """On samples of another mean than that of the file, which all ranks have to read."""
    x, y = rows()

    def rank(comm: Comm, **options: Any) -> Any:
        verify = comm.size > 1
        c = Config(
            steps=2, load=saved, load_partial=True, dtype="float64", verify=verify, **options
        )
        trainer = Trainer(c, wider, (x * 2, y), comm)
        return trainer.loaded, trainer.fit(NullReport())["test_loss"]

    loaded, loss = threads.run(1, rank)[0]
    for options in ({"zero": 3}, {"pp": 2}, {"tp": 2}):
        found = threads.run(2, lambda comm, options=options: rank(comm, **options))
        assert [one for one, _ in found] == [loaded] * 2
        assert found[0][1] == pytest.approx(loss, rel=1e-12)


def test_without_it_all_has_to_fit(saved: str) -> None:
    with refused(
        "--load",
        "only the model has 4.weight (4, 5)",
        "; to train with the tensors that fit",
    ):
        Trainer(Config(load=saved), wider, rows())


def test_a_file_of_which_nothing_fits_is_refused(saved: str) -> None:
    def other() -> nn.Module:
        return nn.Sequential(nn.Flatten(), nn.Tanh(), nn.Linear(6, 3))

    with refused(
        "no tensor in it fits the model",
        "only the model has 2.weight (3, 6), 2.bias (3,)",
        "only the state has",
    ):
        Trainer(Config(load=saved, load_partial=True), other, rows())


def test_the_command_lists_misfits(tmp_path: Path, command: Command) -> None:
    path = str(tmp_path / "m.safetensors")
    run = ["--data=iris", "--steps=1"]
    assert command("--model=mlp:4-8-3", *run, "--save", path).status == 0
    found = command("--model=mlp:4-8-7", *run, "--load", path, "--load-partial", "--json")
    loaded = found.events[0]["loaded"]
    assert loaded["loaded"] == ["1.weight", "1.bias"]
    assert loaded["other_shapes"] == {"3.weight": [[3, 8], [7, 8]], "3.bias": [[3], [7]]}
    refused = command(*run, "--load-partial")
    assert refused.status == 2
    assert "load_partial without load: it says how much of that file must match" in refused.err
