"""The mean and standard deviation of the samples are saved with a model, and applied again."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.commands import IRIS, Command
from helpers.datafiles import refused
from helpers.runs import fit, images, rows, small
from safetensors.numpy import save_file

import nnmpi
from nnmpi import Config, Trainer, nn
from nnmpi.data import Standardiser


def samples(trainer: Trainer) -> np.ndarray:
    """What the model is trained on."""
    return trainer.train.gather(np.arange(5)).x


def test_a_loaded_run_standardises_to_the_same_bits(tmp_path: Path) -> None:
    """Also samples whose own mean is another."""
    path = str(tmp_path / "m")
    x, y = rows()
    first = Trainer(Config(steps=1, save=path), small, (x, y, x, y))
    fit(first)
    for more in ({}, {"dtype": "float64"}):
        again = Trainer(Config(steps=1, load=path, **more), small, (x[:40] + 3, y[:40], x, y))
        wanted = first.standardiser.apply(again.train.split.x[:5], again.train.dtype)
        np.testing.assert_array_equal(samples(again), wanted, strict=True)
        assert abs(samples(Trainer(Config(**more), small, (x[:40] + 3, y[:40]))) - wanted).max() > 1


def test_images_have_a_number_per_channel(tmp_path: Path) -> None:
    path = str(tmp_path / "m")
    config = Config(steps=1, save=path)
    trainer = Trainer(config, lambda: nn.Sequential(nn.Flatten(), nn.Linear(64, 10)), images())
    fit(trainer)
    metadata = nnmpi.load(path, with_metadata=True)[1]
    for found in (Standardiser.from_metadata(metadata), trainer.standardiser):
        assert found.mean.shape == found.std.shape == (1, 1, 1)
    flat = {key: str(np.ravel(json.loads(metadata[key])).tolist()) for key in ("mean", "std")}
    shaped = Standardiser.from_metadata(flat).shaped_for(images().train.x)
    for a, b in zip(shaped, trainer.standardiser, strict=True):
        np.testing.assert_array_equal(a, b, strict=True)


def of_mean(mean: str, std: str = "[1, 1, 1, 1, 1, 1]") -> dict[str, str]:
    return {"mean": mean, "std": std}


WRONG = {
    "another width": (of_mean("[1, 2]", "[3, 4]"), "for 2 channels or features", "have 6 features"),
    "no std": ({"mean": "[1]"}, "no mean and std", "standardise samples as"),
    "no JSON": (of_mean("0.5 0.5"), "mean 0.5 0.5", "not JSON lists of numbers"),
    "deep": (of_mean("[" * 100_000), "not JSON lists of numbers", "[[["),
    "beyond floats": (of_mean("[1" + "0" * 400 + "]"), "not JSON lists of numbers", "[1000"),
    "a std of 0": (of_mean("[1, 2]", "[3, 0]"), "not JSON lists", "every std above 0"),
    "too large": (of_mean("[1e60, 2]", "[3, 4]"), "not JSON lists", "1e60"),
}


@pytest.mark.parametrize("case", WRONG.values(), ids=WRONG)
def test_metadata_that_do_not_fit_are_refused(case: Any, tmp_path: Path) -> None:
    metadata, *words = case
    path = tmp_path / "m"
    nnmpi.save(small().state_dict(), path, metadata)
    with refused(f"--load {path}", *words):
        Trainer(Config(load=str(path)), small, rows())


def test_a_file_without_metadata_leaves_the_mean_of_the_data(tmp_path: Path) -> None:
    path = tmp_path / "m"
    save_file({name: t.numpy() for name, t in small().state_dict().items()}, path)
    loaded, plain = (Trainer(Config(load=name), small, rows()) for name in (str(path), None))
    np.testing.assert_array_equal(samples(loaded), samples(plain))


def test_pytorch_has_the_same_accuracy_on_raw_samples(command: Command) -> None:
    torch = pytest.importorskip(
        "torch", reason="PyTorch is not installed: NNMPI_WITH_TORCH=1 scripts/test installs it"
    )
    from safetensors import safe_open

    done = command(*IRIS, "--epochs", "20", "--lr", "0.02", "--save", "m").events[-1]
    iris = nnmpi.data.load("iris")
    with safe_open("m", framework="pt") as file:
        mean, std = (torch.tensor(json.loads(file.metadata()[key])) for key in ("mean", "std"))
        state = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    layers = (torch.nn.Linear(4, 50), torch.nn.ReLU(), torch.nn.Linear(50, 3))
    model = torch.nn.Sequential(*layers)
    model.load_state_dict(state)

    def accuracy(x: Any) -> float:
        with torch.no_grad():
            return float((model(x).argmax(1).numpy() == iris.test.y).mean())

    x = torch.from_numpy(iris.test.x)
    assert accuracy((x - mean) / std) == pytest.approx(done["accuracy"])
    assert done["accuracy"] > 0.9
    assert accuracy(x) < 0.7  # what happens to those who forget
