"""State dictionaries and their files, which PyTorch reads and writes too."""

import copy
import os
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.datafiles import refused
from helpers.device import DEVICE, needs_device
from helpers.tensor.elsewhere import keep, stage_of
from safetensors.numpy import load_file, save_file

import nnmpi
from nnmpi import nn
from nnmpi.io.files import atomic, loading, saving
from nnmpi.nn.initial import normal
from nnmpi.nn.parameter import Parameter
from nnmpi.nn.place import Place
from nnmpi.nn.state import everything


def model() -> nn.Sequential:
    """A small model with every kind of entry: parameters, statistics and a count."""
    return nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3), nn.Linear(3, 2, bias=False))


def equal(a: dict[str, np.ndarray], b: dict[str, np.ndarray]) -> None:
    assert list(a) == list(b)
    for name, array in a.items():
        assert (array.dtype, array.shape) == (b[name].dtype, b[name].shape)
        np.testing.assert_array_equal(array, b[name], err_msg=name)


def incremented(m: nn.Module) -> dict[str, np.ndarray]:
    """The state of m with 1 added to every element."""
    return {name: array + np.ones((), array.dtype) for name, array in m.state_dict().items()}


BAD_STATES: dict[str, tuple[dict[str, Any], tuple[str, ...]]] = {
    "missing": ({"2.weight": None}, ("only the model has 2.weight (2, 3)",)),
    "missing buffer": ({"1.running_var": None}, ("only the model has 1.running_var (3,)",)),
    "unexpected": ({"extra": np.zeros(2)}, ("only the state has extra",)),
    "an escape code": ({"\x1b[2J": np.zeros(2)}, ("only the state has \\x1b[2J",)),
    "shape": ({"2.weight": np.zeros((3, 2))}, ("2.weight has shape (3, 2), the model",)),
    "not numbers": ({"2.weight": np.full((2, 3), "x")}, ("2.weight holds <U1",)),
    "many": (
        dict.fromkeys(model().state_dict()),
        ("only the model has 0.weight (3, 2)", "and 4 more"),
    ),
}


@pytest.mark.parametrize("case", BAD_STATES.values(), ids=BAD_STATES)
def test_a_state_that_does_not_fit_changes_nothing(case: Any) -> None:
    changes, words = case
    m = model()
    before, state = copy.deepcopy(m.state_dict()), incremented(m) | changes
    with refused("state does not fit", *words):
        m.load_state_dict({name: a for name, a in state.items() if a is not None})
    equal(m.state_dict(), before)


def test_load_state_dict_takes_tensors_and_lists() -> None:
    m = model()
    state = incremented(m)
    tensors = {name: nnmpi.tensor(array) for name, array in state.items()}
    m.load_state_dict(tensors)
    for t in tensors.values():
        t.zero_()  # the model has copied it
    equal(m.state_dict(), state)
    state = incremented(m)
    m.load_state_dict({name: array.tolist() for name, array in state.items()})
    equal(m.state_dict(), state)


FILED = {name: case[0] for name, case in BAD_STATES.items() if name != "not numbers"}
FILED["complex"] = {"2.weight": np.zeros((2, 3), "complex64")}
FILED["one number for an array"] = {"1.running_mean": np.array(1.0)}


@pytest.mark.parametrize("changes", FILED.values(), ids=FILED)
def test_a_file_that_does_not_fit_is_refused_as_its_state_is(
    changes: dict[str, Any], tmp_path: Path
) -> None:
    """Also by a rank that holds nothing of what is wrong."""
    m, path = model(), tmp_path / "m"
    before, state = copy.deepcopy(m.state_dict()), incremented(m) | changes
    save_file({name: np.asarray(a) for name, a in state.items() if a is not None}, path)
    with pytest.raises(ValueError, match="state does not fit") as of_state:
        m.load_state_dict(nnmpi.load(path))
    for held in (everything, "0.bias".__eq__):
        with refused(f"--load {path}: {of_state.value}"):
            loading.load_into(path, m, held)
    equal(m.state_dict(), before)


def test_a_rank_loads_what_it_holds(tmp_path: Path) -> None:
    whole, path = model().to("float64"), tmp_path / "m"
    state = incremented(whole)
    nnmpi.save(state, path)
    loading.load_into(path, whole)
    equal(whole.state_dict(), state)
    assert {p.seed for p in whole.parameters()} == {None}
    stage = model()
    keep(stage, held := stage_of(1, 0, 1))
    loading.load_into(path, stage, held)  # to write to the others would raise
    wanted = {name: a.astype("f") if a.dtype.kind == "f" else a for name, a in state.items()}
    equal(stage[1].state_dict(), {n[2:]: a for n, a in wanted.items() if n[0] == "1"})
    equal(stage[2].state_dict(), {"weight": wanted["2.weight"]})


class Parts(nn.Module):
    """Parts of tensors, some of them empty."""

    def __init__(self, rows: tuple[int, int], columns: tuple[int, int]) -> None:
        matrix = Place("", (512, 512), (rows, columns))
        self.matrix = Parameter.lazy(matrix, normal(1.0), (1, 0))
        bias = Place("", (512,), (columns,))
        self.register_buffer("bias", np.zeros(bias.local_shape), place=bias)
        self.register_buffer("none", np.zeros((0, 3)))
        self.register_buffer("one", np.array(0))


@pytest.mark.parametrize("columns", [(37, 50), (512, 512)])
def test_of_a_tensor_only_the_part_that_is_here_is_read(
    columns: tuple[int, int], tmp_path: Path
) -> None:
    rng, path = np.random.default_rng(0), tmp_path / "m"
    matrix, bias = rng.standard_normal((512, 512)), rng.standard_normal(512)
    nnmpi.save({"matrix": matrix, "bias": bias, "none": np.zeros((0, 3)), "one": np.array(7)}, path)
    m = Parts((100, 110), columns).to("float64")
    loading.load_into(path, m)  # imports what it needs
    tracemalloc.start()
    loading.load_into(path, m)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    np.testing.assert_array_equal(m.matrix.data, matrix[100:110, slice(*columns)])
    np.testing.assert_array_equal(m.bias, bias[slice(*columns)])
    assert m.one == 7
    assert peak < matrix.nbytes / 20


@needs_device
def test_states_convert_between_types_and_backends() -> None:
    there = model().to(np.float64, DEVICE)
    state = incremented(model())
    there.load_state_dict(state)
    for name, array in there.state_dict().items():
        assert type(array.array) is DEVICE.xp.ndarray
        np.testing.assert_array_equal(array, state[name])
    on_device = {name: DEVICE.asarray(array.numpy()) for name, array in state.items()}
    here = model()
    here.load_state_dict(on_device)
    equal(here.state_dict(), state)


@pytest.mark.one_in(3)
@pytest.mark.parametrize("name", saving.TYPES)
def test_every_type_is_read_by_the_library(name: str, tmp_path: Path) -> None:
    """Beside tensors of other widths, so that alignment and the order of the data matter; and
    nothing else is in the folder."""
    pytest.importorskip("ml_dtypes", reason="bfloat16 needs ml_dtypes")
    dtype = np.dtype(name)
    state = {
        "odd": np.ones(3, np.int8),
        "matrix": np.asfortranarray(np.arange(6).reshape(2, 3)).astype(dtype),
        "strided": np.arange(24).reshape(4, 6).astype(dtype).T[::2],
        "scalar": np.array(1, dtype),
        "empty": np.zeros((0, 3), dtype),
        "wide": np.arange(3.0),
    }
    nnmpi.save(state, tmp_path / "m")
    for found in (load_file(tmp_path / "m"), nnmpi.load(str(tmp_path / "m"))):
        equal({key: found[key] for key in state}, state)
    assert os.listdir(tmp_path) == ["m"]


def test_an_empty_state_has_a_file(tmp_path: Path) -> None:
    nnmpi.save({}, tmp_path / "m")
    assert nnmpi.load(tmp_path / "m") == load_file(tmp_path / "m") == {}


def damaged(folder: Path, content: Callable[[bytes], bytes]) -> Path:
    path = folder / "m.safetensors"
    nnmpi.save(model().state_dict(), path)
    path.write_bytes(content(path.read_bytes()))
    return path


def into_a_model(path: Path) -> None:
    loading.load_into(path, model())


LOADS: tuple[Callable[[Path], object], ...] = (nnmpi.load, into_a_model)

BAD_FILES: dict[str, Callable[[bytes], bytes]] = {
    "empty": lambda b: b"",
    "four bytes": lambda b: b[:4],
    "half a header": lambda b: b[:100],
    "one byte short": lambda b: b[:-1],
    "one byte too many": lambda b: b + b"x",
    "another kind": lambda b: b"PK\x03\x04" + bytes(200),
    "text": lambda b: b"no such thing\n" * 20,
}


@pytest.mark.parametrize("content", BAD_FILES.values(), ids=BAD_FILES)
def test_a_damaged_file_is_an_error(content: Callable[[bytes], bytes], tmp_path: Path) -> None:
    path = damaged(tmp_path, content)
    for load in LOADS:
        with refused(f"cannot load {path}", "not a complete safetensors file"):
            load(path)


def test_loading_a_missing_file_is_an_error(tmp_path: Path) -> None:
    for load in LOADS:
        with refused(f"cannot load {tmp_path / 'missing'}: no such file"):
            load(tmp_path / "missing")
        with refused(f"cannot load {tmp_path}: it is a directory; name a file in it"):
            load(tmp_path)
        with refused(f"cannot load {os.devnull}: not a regular file"):
            load(Path(os.devnull))


def pipe(folder: Path) -> Path:
    os.mkfifo(folder / "pipe")
    return folder / "pipe"


BAD_TARGETS: dict[str, tuple[Callable[[Path], Path], str]] = {
    "no directory": (lambda d: d / "runs" / "m", "no directory"),
    "a directory": (lambda d: d, "it is a directory"),
    "a pipe": (pipe, "a device or a pipe"),
    "a long name": (lambda d: d / ("m" * 256), "name too long"),
}


@pytest.mark.parametrize("case", BAD_TARGETS.values(), ids=BAD_TARGETS)
def test_saving_where_no_file_can_be_written_is_an_error(case: Any, tmp_path: Path) -> None:
    make, word = case
    path = make(tmp_path)
    before = [(p, p.lstat().st_mode) for p in tmp_path.iterdir()]
    with refused("cannot save", word):
        nnmpi.save(model().state_dict(), path)
    assert [(p, p.lstat().st_mode) for p in tmp_path.iterdir()] == before


def disk_full(*_: Any) -> None:
    raise OSError(28, "No space left on device")


def test_a_failed_save_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, state = tmp_path / "m", model().state_dict()
    nnmpi.save(state, path)
    for step in ("fsync", "replace"):
        with monkeypatch.context() as patch:
            patch.setattr(atomic.os, step, disk_full)
            with refused(f"cannot save {path}: No space left"):
                nnmpi.save(incremented(model()), path)
    with refused(f"cannot save {path}: a has type object; convert it to"):
        nnmpi.save({"a": np.array([None])}, path)
    assert os.listdir(tmp_path) == ["m"]
    assert nnmpi.load(path).keys() == state.keys()
    np.testing.assert_array_equal(nnmpi.load(path)["0.weight"], state["0.weight"])
