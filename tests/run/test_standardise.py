"""--standardise: by what samples are standardised, and what a saved model says of it."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.commands import IRIS, Command
from helpers.runs import fit, images, rows, small

import nnmpi
from nnmpi import Config, Trainer, nn
from nnmpi.data import Dataset, Split, Standardiser
from nnmpi.run.setup.datasets import guessed


def flat() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 10))


def samples(trainer: Trainer) -> Any:
    return trainer.train.gather(np.arange(5)).x


@pytest.mark.parametrize(("spec", "mean", "std"), [("none", 0, 1), ("-2,0.5", -2, 0.5)])
def test_numbers_are_standardised_as_asked(spec: str, mean: float, std: float) -> None:
    x, y = rows()
    both = {"a": x.astype("float32"), "b": np.arange(140).reshape(70, 2)}
    for data, build in (((x, y), small), (images(), flat)):
        trainer = Trainer(Config(steps=1, standardise=spec), build, data)
        raw = trainer.train.split.x[:5].astype("float32")
        np.testing.assert_array_equal(samples(trainer), (raw - np.float32(mean)) / np.float32(std))
    found = Standardiser.of_numbers(both, mean, std).apply(both)
    np.testing.assert_array_equal(found["a"], (both["a"] - np.float32(mean)) / np.float32(std))
    assert found["b"] is both["b"]


def test_a_file_says_what_was_used(tmp_path: Path) -> None:
    path = str(tmp_path / "m")
    fit(Trainer(Config(steps=1, save=path, standardise="100,2"), small, rows()))
    metadata = nnmpi.load(path, with_metadata=True)[1]
    assert metadata["mean"] == "[100.0, 100.0, 100.0, 100.0, 100.0, 100.0]"
    again = Trainer(Config(load=path), small, rows())
    np.testing.assert_array_equal(again.standardiser.std, np.full(6, 2, "float32"))
    other = Trainer(Config(load=path, standardise="none"), small, rows())
    np.testing.assert_array_equal(other.standardiser.mean, np.zeros(6))


@pytest.mark.parametrize("options", [(), ("--load-partial",), ("--standardise=none",)])
def test_a_file_that_does_not_say_so(
    command: Command, tmp_path: Path, options: tuple[str, ...]
) -> None:
    saved, plain = str(tmp_path / "saved"), str(tmp_path / "plain")
    assert command(*IRIS, "--steps=1", f"--save={saved}").status == 0
    nnmpi.save(nnmpi.load(saved), plain)
    warning = "does not say how its samples were standardised"
    assert warning not in command(*IRIS, "--steps=1", f"--load={saved}", *options).out
    found = command(*IRIS, "--steps=1", f"--load={plain}", *options)
    assert found.status == 0
    assert (warning in found.out) == ("--standardise=none" not in options)


def test_indices_are_not_standardised_by_a_guess(tmp_path: Path) -> None:
    path = str(tmp_path / "m")
    data = np.arange(64).reshape(16, 4) % 7, np.arange(16) % 3

    def build() -> nn.Module:
        return nn.Sequential(nn.Embedding(7, 5), nn.Flatten(), nn.Linear(20, 3))

    nnmpi.save(build().state_dict(), path)
    assert Trainer(Config(load=path), build, data).setup.guess == ""
    numbers, indices = np.linspace(0, 1, 32).reshape(16, 2), data[0]
    split = Split({"a": numbers, "b": indices}, data[1])
    both = Dataset("both", split, split, 3, "")
    assert "how its samples were standardised" in guessed(path, Config(load=path), both)


def test_the_command_takes_it(command: Command) -> None:
    assert command(*IRIS, "--steps=1", "--standardise=-1,2").status == 0
