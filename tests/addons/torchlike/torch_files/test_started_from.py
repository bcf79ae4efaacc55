"""--load of files of PyTorch: state.pt has the state of `build()`, nested.pt has it under "model",
both as PyTorch 2.13 writes them."""

import shlex
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from helpers.commands import IRIS, Command
from helpers.datafiles import refused
from helpers.ops.oracle import needs_torch, pytorch

import nnmpi
from nnmpi import Config, Trainer, nn
from nnmpi.addons.torchlike.files.torch_files import tensors
from nnmpi.io.files import loading

HERE = Path(__file__).parent


def build() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3))


def test_a_run_starts_from_a_state_dict_which_it_reads_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    x = np.array([[5, 3, 1, 0.5], [1, 2, 3, 4]] * 20, "float32")
    path = HERE / "state.pt"
    model = build()
    model.load_state_dict(nnmpi.load(path))
    config, read, files = Config(load=str(path), standardise="none"), tensors.read, list[Path]()
    monkeypatch.setattr(tensors, "read", lambda file: files.append(file) or read(file))
    with Trainer(config, build, (x, np.arange(40) % 3)) as trainer:
        scores = trainer.predict(x[:3])
    assert files == [path]
    model.eval()
    np.testing.assert_allclose(scores, model(nnmpi.tensor(x[:3])).numpy(), rtol=1e-5)


def test_the_command_warns_of_its_samples(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "model_of_state.py").write_text(
        "from nnmpi import nn\n"
        "def build():\n    return nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3))\n"
    )
    given = *IRIS, "--steps=1", "--model=model_of_state:build"
    found = command(*given, f"--load={HERE / 'state.pt'}")
    assert found.status == 0, found.err
    assert "state.pt does not say how its samples were standardised" in found.out


def test_a_state_dict_within_others_is_taken_as_the_message_says(tmp_path: Path) -> None:
    file = tmp_path / "nested.pt"
    file.write_bytes((HERE / "nested.pt").read_bytes())
    with refused("nested.pt", "no state_dict", "take the one in it: ") as caught:
        loading.load_into(file, build())
    command = shlex.split(str(caught.value).partition("take the one in it: ")[2])
    subprocess.run([sys.executable, *command[1:]], check=True, timeout=200)
    model = build()
    assert not loading.load_into(tmp_path / "nested.safetensors", model).missing
    np.testing.assert_array_equal(
        model.state_dict()["0.weight"], nnmpi.load(HERE / "state.pt")["0.weight"]
    )


def test_a_state_dict_beside_tensors_is_found() -> None:
    with refused("new.pt", "no state_dict", "new.pt')['model'], "):
        loading.load_into(HERE / "new.pt", build())


def test_tensors_beside_other_values_are_no_state_dict(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tensors, "read", lambda file: {"w": np.ones(2), "epoch": 3})
    with refused("net.pt", "keys w, epoch: save model.state_dict() alone"):
        tensors.tensors(Path("net.pt"))


def test_another_model_is_refused_by_names() -> None:
    with refused("state.pt", "0.weight"):
        loading.load_into(HERE / "state.pt", nn.Linear(4, 3))


@needs_torch
@pytest.mark.parametrize("zipped", [False, True])
def test_views_and_other_values(zipped: bool, tmp_path: Path) -> None:
    torch, file = pytorch(), tmp_path / "net.pt"
    weight = torch.arange(6.0).reshape(3, 2)
    state = {"weight": weight.T, "bias": weight[:2, 1]}
    torch.save(state, file, _use_new_zipfile_serialization=zipped)
    model = nn.Linear(3, 2)
    loading.load_into(file, model)
    np.testing.assert_array_equal(model.state_dict()["weight"], weight.T.numpy())
    np.testing.assert_array_equal(model.state_dict()["bias"], [1, 3])
    for value, words in ((3, "save model.state_dict"), ({"a": 1}, "it has the keys a")):
        torch.save(value, file, _use_new_zipfile_serialization=zipped)
        with refused("net.pt", "no state_dict", words):
            loading.load_into(file, model)
