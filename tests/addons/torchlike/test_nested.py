"""Files of nested dictionaries, which hold a whole training program's state."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.datafiles import refused
from safetensors.numpy import load_file

import nnmpi
from nnmpi import nn
from nnmpi.io.files.saving import STRUCTURE


def saved(state: Any, folder: Path) -> Any:
    nnmpi.save(state, folder / "s.safetensors")
    return nnmpi.load(folder / "s.safetensors")


def equal(a: Any, b: Any) -> None:
    """a is what a file has of b, with tensors in the place of arrays."""
    assert type(a) is (nnmpi.Tensor if isinstance(b, np.ndarray) else type(b))
    if isinstance(a, dict):
        assert [*a] == [*b]
        for key in a:
            equal(a[key], b[key])
    elif isinstance(a, list | tuple):
        for x, y in zip(a, b, strict=True):
            equal(x, y)
    elif isinstance(b, np.ndarray):
        assert (a.dtype, a.shape) == (b.dtype, b.shape)
        np.testing.assert_array_equal(a, b)
    else:
        assert a == b


A, B = np.arange(6.0).reshape(2, 3), np.array([True, False])
STATES: dict[str, Any] = {
    **{f"a header of {n} bytes": {"x" * n: A} for n in range(100)},  # one begins as a pickle
    "a checkpoint": {"model": {"w": A, "b": B}, "epoch": 3, "losses": [0.1, 1e300], "name": "ü"},
    "numbers as keys": {"state": {0: {"step": 2}, 10: {"m": A}}, "milestones": {30: 1}},
    "names that meet": {"a.b": A, "a": {"b": B, "b_": 2 * A}, "a.b_": 3 * A},
    "no tensors": {"x": 1.0, "y": None, "z": (True, (2**70, []), {})},
    "a list": [A, 1, [B]],
    "a tuple": (A, B),
    "an array": A,
    "an empty list": [],
    "a number among arrays": {"w": A, "epoch": 3},
    "infinity": {"best": float("inf"), "w": A},
}


@pytest.mark.parametrize("name", STATES)
def test_a_state_is_loaded_as_it_was_saved(name: str, tmp_path: Path) -> None:
    equal(saved(STATES[name], tmp_path), STATES[name])


def test_tensors_have_the_names_that_lead_to_them(tmp_path: Path) -> None:
    saved({"model": {"0.weight": A}, "list": [1, B]}, tmp_path)
    assert load_file(tmp_path / "s.safetensors").keys() == {"model.0.weight", "list.1"}


def test_tensors_stay_and_numpys_numbers_become_pythons(tmp_path: Path) -> None:
    found = saved([nnmpi.tensor(A), np.float32(0.5), np.int64(3)], tmp_path)
    equal(found, [A, 0.5, 3])


def test_a_state_dict_is_written_as_before(tmp_path: Path) -> None:
    """It has no structure, and that of a file from which metadata come does not stay."""
    saved({"a": {"b": A}}, tmp_path)
    file = tmp_path / "s.safetensors"
    state, metadata = nnmpi.load(file, with_metadata=True)
    assert STRUCTURE in metadata
    nnmpi.save(state["a"], file, metadata)
    again, metadata = nnmpi.load(file, with_metadata=True)
    equal(again, {"b": A})
    assert STRUCTURE not in metadata


REFUSED: dict[str, tuple[Any, tuple[str, ...]]] = {
    "a module": ({"a": [nn.ReLU()]}, ("state['a'][0] is a ReLU", "its .state_dict()")),
    "an object": ({"a": {"b": object()}}, ("state['a']['b'] is a object", "an array, a number")),
    "a complex number": ({"a": 1j}, ("is a complex",)),
    "a key": ({(1, 2): A}, ("state[(1, 2)] is a key that is a tuple", "strings or numbers")),
    "objects in an array": ({"a": [np.array([None])]}, ("a.0 has type object",)),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_a_file_cannot_hold_is_refused(case: str, tmp_path: Path) -> None:
    state, words = REFUSED[case]
    with refused("cannot save", *words):
        saved(state, tmp_path)
    assert not [*tmp_path.iterdir()]


def test_a_state_in_itself_is_refused(tmp_path: Path) -> None:
    state: dict[str, Any] = {"w": A}
    state["self"] = state
    with refused("cannot save", "in themselves"):
        saved(state, tmp_path)


STRUCTURES = {
    "no JSON": "{",
    "a tensor that is not there": '{"tensor": "b"}',
    "two kinds": '{"tensor": "a", "dict": []}',
    "no pairs": '{"dict": [1]}',
    "deep": "[" * 100_000 + "]" * 100_000,
    "an unhashable key": '{"dict": [[[], 1]]}',
}


@pytest.mark.parametrize("case", STRUCTURES)
def test_a_structure_that_does_not_fit_is_refused(case: str, tmp_path: Path) -> None:
    file = tmp_path / "s.safetensors"
    nnmpi.save({"a": A}, file, {"mean": json.dumps([0])})
    content = _with_structure(file.read_bytes(), STRUCTURES[case])
    file.write_bytes(content)
    with refused("cannot load", "the structure in its metadata does not fit"):
        nnmpi.load(file)


def _with_structure(content: bytes, text: str) -> bytes:
    length = int.from_bytes(content[:8], "little")
    header = json.loads(content[8 : 8 + length])
    header["__metadata__"] = {STRUCTURE: text}
    head = json.dumps(header).encode()
    return len(head).to_bytes(8, "little") + head + content[8 + length :]
