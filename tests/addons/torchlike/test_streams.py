"""States that are saved to open files and to memory, and read from there."""

import io
from pathlib import Path

import numpy as np
import pytest
from helpers.datafiles import refused
from helpers.ops.oracle import needs_torch, pytorch

import nnmpi
from nnmpi import nn

STATE = {"w": np.arange(6.0).reshape(2, 3), "n": np.array([1, 2])}


def test_a_model_in_memory_is_read_again() -> None:
    model, other, memory = nn.Linear(3, 2), nn.Linear(3, 2), io.BytesIO()
    nnmpi.save(model.state_dict(), memory)
    memory.seek(0)
    other.load_state_dict(nnmpi.load(memory))
    np.testing.assert_array_equal(model.weight.numpy(), other.weight.numpy())


def test_an_open_file_has_the_bytes_of_a_named_one(tmp_path: Path) -> None:
    nnmpi.save(STATE, tmp_path / "a.safetensors", {"by": "me"})
    with open(tmp_path / "b.safetensors", "wb") as file:
        nnmpi.save(STATE, file, {"by": "me"})
    assert (tmp_path / "a.safetensors").read_bytes() == (tmp_path / "b.safetensors").read_bytes()
    with open(tmp_path / "b.safetensors", "rb") as file:
        state, metadata = nnmpi.load(file, with_metadata=True)
    assert [*state] == [*STATE]
    assert metadata["by"] == "me"


def test_states_lie_one_behind_the_other_to_the_last() -> None:
    memory = io.BytesIO()
    memory.write(b"first")
    nnmpi.save({"epoch": 3, "model": STATE}, memory)
    memory.seek(5)
    assert nnmpi.load(memory)["epoch"] == 3


@needs_torch
def test_pytorchs_files_in_memory_are_read() -> None:
    torch, memory = pytorch(), io.BytesIO()
    torch.save({"w": torch.arange(3.0)}, memory)
    memory.seek(0)
    np.testing.assert_array_equal(nnmpi.load(memory)["w"], [0, 1, 2])


def test_text_and_what_is_no_state_are_refused(tmp_path: Path) -> None:
    (tmp_path / "t.pt").write_text("text")
    with (
        open(tmp_path / "t.pt", encoding="utf-8") as file,
        pytest.raises(TypeError, match=r'open\("t.pt", "rb"\)'),
    ):
        nnmpi.load(file)
    with refused("cannot load", "stream"):
        nnmpi.load(io.BytesIO(b"nothing"))
    with pytest.raises(Exception, match="is not a state dictionary"):
        nnmpi.save(3, io.BytesIO())
