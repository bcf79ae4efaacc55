"""`nnmpi.load` returns tensors, as `torch.load` does of the same file."""

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.datafiles import refused
from helpers.device import ON_DEVICE
from helpers.ops.oracle import needs_torch, pytorch

import nnmpi
from nnmpi.arrays import backend


@needs_torch
def test_gradients_and_shared_memory_are_those_of_the_file(tmp_path: Path) -> None:
    torch, file = pytorch(), tmp_path / "x.pt"
    w = torch.arange(6.0).reshape(2, 3)
    z = torch.ones(2, requires_grad=True)
    torch.save({"w": w, "row": w[1], "p": torch.nn.Parameter(w[0].clone()), "z": z, "y": z}, file)
    ours, theirs = nnmpi.load(file), torch.load(file)
    for name, t in theirs.items():
        assert ours[name].requires_grad == t.requires_grad, name
        assert ours[name].is_leaf, name
    for state in (ours, theirs):
        state["row"].zero_()
        (state["z"] * 3).sum().backward()
    np.testing.assert_array_equal(ours["w"], theirs["w"])
    np.testing.assert_array_equal(ours["y"].grad, theirs["y"].grad)
    nnmpi.save(ours, tmp_path / "ours")
    np.testing.assert_array_equal(nnmpi.load(tmp_path / "ours")["z"], [1, 1])


@pytest.mark.parametrize("metadata", [False, True])
def test_a_file_has_tensors_to_write_to(metadata: bool, tmp_path: Path) -> None:
    nnmpi.save({"w": np.ones(3), "n": np.zeros((0, 2)), "i": np.array(1)}, tmp_path / "m")
    found = nnmpi.load(tmp_path / "m", with_metadata=metadata)
    state = found[0] if metadata else found
    for t in state.values():
        assert type(t) is nnmpi.Tensor
        assert not t.requires_grad
        t.add_(1)
    assert [state[name].tolist() for name in ("w", "n", "i")] == [[2, 2, 2], [], 2]
    assert nnmpi.load(tmp_path / "m")["w"].tolist() == [1, 1, 1]


@pytest.mark.parametrize("on", [backend.CPU, ON_DEVICE])
@pytest.mark.parametrize("nested", [False, True])
def test_tensors_are_where_map_location_says(nested: bool, on: Any, tmp_path: Path) -> None:
    state = {"a": {"w": np.arange(6.0)}} if nested else {"w": np.arange(6.0)}
    nnmpi.save(state, tmp_path / "m")
    content = (tmp_path / "m").read_bytes()
    for where in (on.name, on):
        for file in (tmp_path / "m", io.BytesIO(content)):
            found = nnmpi.load(file, where)
            w = found["a"]["w"] if nested else found["w"]
            assert w.device == on
            np.testing.assert_array_equal(w, np.arange(6.0))
    for usual in (None, lambda storage, location: storage, {"cuda:0": "cpu"}):
        found = nnmpi.load(tmp_path / "m", map_location=usual)
        assert (found["a"] if nested else found)["w"].device == backend.CPU
    with refused("device 'tpu' is not one of"):
        nnmpi.load(tmp_path / "m", map_location="tpu")
