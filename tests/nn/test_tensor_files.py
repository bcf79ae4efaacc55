"""Tensors of safetensors files: bfloat16 with and without ml_dtypes, parts, and shards."""

import json
import os
import sys
from pathlib import Path

import numpy as np
import pytest
from helpers.datafiles import refused
from helpers.shards import INDEX, cut, write_index

import nnmpi
from nnmpi import Config, Trainer, nn
from nnmpi.comm import comm_self
from nnmpi.io.files import loading
from nnmpi.nn.tensor_files import stored_in

VALUES = np.array([[1.5, -0.0, 3e38], [np.inf, 1e-40, -7.0]], "float32")


@pytest.fixture
def bfloat16() -> np.dtype:
    ml_dtypes = pytest.importorskip("ml_dtypes", reason="bfloat16 needs ml_dtypes")
    return np.dtype(ml_dtypes.bfloat16)


@pytest.fixture
def without(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """As if ml_dtypes were not installed, until it is undone."""
    monkeypatch.setitem(sys.modules, "ml_dtypes", None)
    return monkeypatch


def test_bfloat16_is_float32_without_ml_dtypes(bfloat16, without, tmp_path: Path) -> None:
    state = {"a": VALUES.astype(bfloat16), "one": np.array(3.0, bfloat16), "none": np.zeros((0, 2))}
    wanted = {name: value.astype("float32") for name, value in state.items()}
    state["none"] = state["none"].astype(bfloat16)
    nnmpi.save(state, tmp_path / "m")
    found = nnmpi.load(tmp_path / "m")
    for name, value in found.items():
        assert (value.dtype, value.shape) == (np.float32, wanted[name].shape)
        np.testing.assert_array_equal(value, wanted[name])
    part = (slice(1, 2), slice(0, 2))
    np.testing.assert_array_equal(stored_in(tmp_path / "m")["a"].read(part), wanted["a"][1:2, :2])
    without.undo()
    assert {value.dtype for value in nnmpi.load(tmp_path / "m").values()} == {bfloat16}


@pytest.mark.parametrize("dtype", ["float32", "float16", "float64", "bfloat16"])
def test_bfloat16_is_converted_to_the_type_of_a_model(dtype: str, bfloat16, tmp_path: Path) -> None:
    layer = nn.Linear(3, 2)
    layer.to(bfloat16)
    state = layer.state_dict()
    assert state["weight"].dtype == bfloat16
    layer.load_state_dict(state)
    nnmpi.save(state, tmp_path / "m")
    for load in (
        lambda m: m.load_state_dict(nnmpi.load(tmp_path / "m")),
        lambda m: loading.load_into(tmp_path / "m", m),
    ):
        other = nn.Linear(3, 2)
        other.to(dtype)
        load(other)
        for name, value in other.state_dict().items():
            assert value.dtype == dtype
            np.testing.assert_array_equal(value, state[name].astype(dtype))


def test_a_float32_state_is_rounded_to_bfloat16(bfloat16) -> None:
    layer, state = nn.Linear(3, 2), nn.Linear(3, 2).state_dict()
    layer.to(bfloat16)
    layer.load_state_dict(state)
    np.testing.assert_array_equal(
        layer.weight.numpy().astype("float32"), state["weight"].astype(bfloat16).astype("float32")
    )


@pytest.mark.parametrize("is_there", [True, False])
def test_a_trainer_loads_bfloat16(is_there: bool, bfloat16, monkeypatch, tmp_path: Path) -> None:
    state = {n: a.astype(bfloat16) for n, a in nn.Linear(4, 3).state_dict().items()}
    nnmpi.save(state, tmp_path / "m")
    if not is_there:
        monkeypatch.setitem(sys.modules, "ml_dtypes", None)
    config = Config(load=str(tmp_path / "m"), data="iris")
    made = Trainer(config, build=lambda: nn.Linear(4, 3), comm=comm_self())
    for name, value in made.model.state_dict().items():
        np.testing.assert_array_equal(value, state[name].astype("float32"))


@pytest.mark.parametrize("number", [np.nan, np.inf])
def test_bfloat16_that_is_not_finite_is_refused(number: float, bfloat16, tmp_path: Path) -> None:
    state = {n: a.astype(bfloat16) for n, a in nn.Linear(4, 3).state_dict().items()}
    state["weight"][1, 2] = number
    nnmpi.save(state, tmp_path / "m")
    with refused(f"weight has the value {number}, which is not finite"):
        loading.load_into(tmp_path / "m", nn.Linear(4, 3))


def test_weights_of_classes_may_be_bfloat16(bfloat16) -> None:
    loss = nn.CrossEntropyLoss(weight=np.array([1.0, 2.0], bfloat16))
    assert np.isfinite(loss(nnmpi.tensor(np.zeros((2, 2), "float32")), np.array([0, 1])).item())


@pytest.mark.parametrize("shape", [[0, 2**62], [1] * 70], ids=["too long", "too many axes"])
def test_a_shape_that_numpy_cannot_have_is_refused(shape: list[int], tmp_path: Path) -> None:
    offsets = [0, 0 if 0 in shape else 4]
    header = json.dumps({"a": {"dtype": "F32", "shape": shape, "data_offsets": offsets}}).encode()
    path = tmp_path / "m"
    path.write_bytes(len(header).to_bytes(8, "little") + header + bytes(offsets[1]))
    with refused(f"cannot load {path}: not a complete safetensors file"):
        nnmpi.load(path)


# ---- shards


@pytest.fixture
def shards(tmp_path: Path) -> dict[str, str]:
    """Three shards in tmp_path; the shard of each tensor."""
    nnmpi.save(model().state_dict(), tmp_path / "model.safetensors")
    return cut(tmp_path, 3)


def model() -> nn.Sequential:
    return nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 3))


def test_an_index_is_loaded_as_one_file_is(shards: dict[str, str], tmp_path: Path) -> None:
    state = nnmpi.load(tmp_path / INDEX)
    assert state.keys() == shards.keys()
    made = Trainer(
        Config(load=str(tmp_path / INDEX), data="iris"), build=model, comm=comm_self()
    ).model
    for name, value in made.state_dict().items():
        np.testing.assert_array_equal(value, state[name])
    assert nnmpi.load(tmp_path / INDEX, with_metadata=True)[1] == {}


def test_a_shard_that_has_changed_is_refused(shards: dict[str, str], tmp_path: Path) -> None:
    file = tmp_path / shards["2.weight"]
    nnmpi.save(nnmpi.load(file), file)
    file.write_bytes(file.read_bytes()[:-1] + b"\x99")
    with refused(f"cannot load {file}: it is damaged"):
        nnmpi.load(tmp_path / INDEX)


LISTED = {
    "above": ("../{0}", "is not the name of a file beside it"),
    "absolute": ("{1}/{0}", "is not the name of a file beside it"),
    "the folder": (".", "is not the name of a file beside it"),
    "a number": (3, "0.bias in 3, which is not the name"),
    "a list": (["{0}"], "0.bias in of type list, which is not the name"),
    "missing": ("none.safetensors", "none.safetensors: no such file"),
    "a null byte": ("a\0b", "a\\x00b: no such file"),
    "a pipe": ("pipe", "pipe: not a regular file"),
    "a device": ("zero", "zero: not a regular file"),
    "no shard": (INDEX, "not a complete safetensors file"),
    "another shard": ("model-00003-of-00003.safetensors", "which does not have it"),
}


@pytest.mark.parametrize("case", LISTED)
def test_an_index_that_lists_what_is_not_there_is_refused(
    case: str, shards: dict[str, str], tmp_path: Path
) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "zero").symlink_to("/dev/zero")
    file, words = LISTED[case]
    if isinstance(file, str):
        file = file.format(shards["0.bias"], tmp_path)
    write_index(tmp_path, {**shards, "0.bias": file})
    with refused(str(tmp_path), words):
        loading.load_into(tmp_path / INDEX, model())
