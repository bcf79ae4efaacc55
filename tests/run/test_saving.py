"""States and their files: whole or not at all, and PyTorch reads and writes the same files."""

import os
import stat
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier
from typing import Any

import numpy as np
import pytest
import strictarray
from datafiles import refused

import nnmpi
from nnmpi import nn
from nnmpi.backend import Backend
from nnmpi.nn.models import MODELS, digits_cnn
from nnmpi.run import saving


def model() -> nn.Sequential:
    """Small, and with all kinds of entries: parameters, statistics and a count."""
    return nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3), nn.Linear(3, 2, bias=False))


def equal(a: dict[str, np.ndarray], b: dict[str, np.ndarray]) -> None:
    assert list(a) == list(b)
    for name, array in a.items():
        assert (array.dtype, array.shape) == (b[name].dtype, b[name].shape)
        np.testing.assert_array_equal(array, b[name], err_msg=name)


def moved(m: nn.Module) -> dict[str, np.ndarray]:
    """The state of m with one added to everything."""
    return {name: array + np.ones((), array.dtype) for name, array in m.state_dict().items()}


def test_a_state_is_a_copy() -> None:
    m = model()
    before, state = m.state_dict(), m.state_dict()
    for array in state.values():
        array[...] = 7
    equal(m.state_dict(), before)
    m.load_state_dict(state)
    for array in state.values():
        array[...] = 8
    assert all((array == 7).all() for array in m.state_dict().values())


BAD_STATES: dict[str, tuple[dict[str, Any], tuple[str, ...]]] = {
    "missing": ({"2.weight": None}, ("2.weight (2, 3) is missing",)),
    "missing buffer": ({"1.running_var": None}, ("1.running_var (3,) is missing",)),
    "unexpected": ({"extra": np.zeros(2)}, ("extra is not part of this model",)),
    "mis-shaped": (
        {"2.weight": np.zeros((3, 2))},
        ("2.weight has shape (3, 2), the model",),
    ),
    "no numbers": ({"2.weight": np.full((2, 3), "x")}, ("2.weight holds <U1",)),
    "many": (dict.fromkeys(model().state_dict()), ("0.weight (3, 2) is missing", "and 4 more")),
}


@pytest.mark.parametrize("case", BAD_STATES.values(), ids=BAD_STATES)
def test_a_state_is_loaded_whole_or_not_at_all(case: Any) -> None:
    changes, words = case
    m = model()
    before, state = m.state_dict(), moved(m) | changes
    with refused("state does not fit", *words):
        m.load_state_dict({name: a for name, a in state.items() if a is not None})
    equal(m.state_dict(), before)


def test_a_state_may_hold_tensors_and_lists() -> None:
    m = model()
    state = moved(m)
    m.load_state_dict({name: nnmpi.tensor(array) for name, array in state.items()})
    equal(m.state_dict(), state)
    state = moved(m)
    m.load_state_dict({name: array.tolist() for name, array in state.items()})
    equal(m.state_dict(), state)


def test_states_move_between_types_and_backends() -> None:
    there = model().to(np.float64, Backend("cuda", strictarray))
    state = moved(model())
    there.load_state_dict(state)
    for name, array in there.state_dict().items():
        assert type(array) is np.ndarray
        np.testing.assert_array_equal(array, state[name])
    on_device = {name: strictarray.asarray(array) for name, array in state.items()}
    here = model()
    here.load_state_dict(on_device)
    equal(here.state_dict(), state)


def test_loading_voids_older_graphs() -> None:
    layer = nn.Linear(2, 2)
    y = layer(nnmpi.tensor(np.ones((1, 2), "float32"))).sum()
    layer.load_state_dict(layer.state_dict())
    with pytest.raises(RuntimeError, match="written in place"):
        y.backward()


def test_buffers_are_saved_moved_and_replaced() -> None:
    module = nn.Module()
    module.register_buffer("mean", np.array([1.0, 2.0], "float32"))
    module.register_buffer("count", np.array(3))
    module.mean = np.array([3.0, 4.0], "float32")
    module.to(np.float64)
    assert [(n, a.tolist(), a.dtype.name) for n, a in module.named_buffers()] == [
        ("mean", [3.0, 4.0], "float64"),
        ("count", 3, "int64"),
    ]
    module.mean = None
    assert list(module.state_dict()) == ["count"]


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16"])
def test_a_file_gives_back_what_was_saved(dtype: str, tmp_path: Path) -> None:
    """Types, shapes (also that of a single number) and memory orders included."""
    m = digits_cnn().to(dtype)
    m.load_state_dict(moved(m))
    path = tmp_path / "m.safetensors"
    nnmpi.save(m.state_dict(), path)
    found = nnmpi.load(str(path))
    equal(dict(sorted(found.items())), dict(sorted(m.state_dict().items())))
    other = digits_cnn().to(dtype)
    other.load_state_dict(found)
    equal(other.state_dict(), m.state_dict())
    assert os.listdir(tmp_path) == ["m.safetensors"]
    strided = np.arange(24.0).reshape(4, 6).T[::2]
    nnmpi.save({"strided": strided, "none": np.zeros((0, 3)), "one": np.array(5)}, path)
    found = nnmpi.load(path)
    np.testing.assert_array_equal(found["strided"], strided)
    assert (found["none"].shape, found["one"].shape, int(found["one"])) == ((0, 3), (), 5)


def test_a_file_may_be_read_by_whom_the_user_lets(tmp_path: Path) -> None:
    beside = tmp_path / "beside"
    beside.touch()
    nnmpi.save(model().state_dict(), tmp_path / "m")
    assert stat.S_IMODE((tmp_path / "m").stat().st_mode) == stat.S_IMODE(beside.stat().st_mode)


def damaged(folder: Path, content: Callable[[bytes], bytes]) -> Path:
    path = folder / "m.safetensors"
    nnmpi.save(model().state_dict(), path)
    path.write_bytes(content(path.read_bytes()))
    return path


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
def test_a_damaged_file_is_refused(content: Callable[[bytes], bytes], tmp_path: Path) -> None:
    path = damaged(tmp_path, content)
    with refused(f"cannot load {path}", "not a whole safetensors file"):
        nnmpi.load(path)


def test_what_is_no_file_is_refused(tmp_path: Path) -> None:
    for path in (tmp_path / "missing", tmp_path):
        with refused(f"cannot load {path}", "no such file"):
            nnmpi.load(path)


def bfloat16(b: bytes) -> bytes:
    """The same file, its float32 numbers named as twice as many of another type."""
    return b.replace(b'"dtype":"F32","shape":[3],', b'"dtype":"BF16","shape":[6],')


def test_a_type_that_numpy_lacks_is_refused(tmp_path: Path) -> None:
    """In a process of its own: where ml_dtypes has been imported, NumPy does not lack it."""
    path = damaged(tmp_path, lambda b: resized(b, bfloat16(b)))
    told = subprocess.run(
        [sys.executable, "-c", f"import nnmpi; nnmpi.load({str(path)!r})"],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    last = told.stderr.splitlines()[-1]
    assert last.startswith(f"ValueError: cannot load {path}")
    assert "type that NumPy lacks" in last
    assert "float32" in last


def resized(old: bytes, new: bytes) -> bytes:
    """`new` with its length of the header put right."""
    n = int.from_bytes(old[:8], "little") + len(new) - len(old)
    return n.to_bytes(8, "little") + new[8:]


def pipe(folder: Path) -> Path:
    os.mkfifo(folder / "pipe")
    return folder / "pipe"


NO_PLACES: dict[str, tuple[Callable[[Path], Path], str]] = {
    "no directory": (lambda d: d / "runs" / "m", "no directory"),
    "a directory": (lambda d: d, "it is a directory"),
    "a pipe": (pipe, "a device or a pipe"),
    "a long name": (lambda d: d / ("m" * 256), "name too long"),
}


@pytest.mark.parametrize("case", NO_PLACES.values(), ids=NO_PLACES)
def test_a_place_where_nothing_can_be_saved_is_refused(case: Any, tmp_path: Path) -> None:
    make, word = case
    path = make(tmp_path)
    before = [(p, p.lstat().st_mode) for p in tmp_path.iterdir()]
    with refused("cannot save", word):
        nnmpi.save(model().state_dict(), path)
    assert [(p, p.lstat().st_mode) for p in tmp_path.iterdir()] == before


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_directory_without_permission_is_refused(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    with refused(f"cannot save {tmp_path / 'm'}", "permission"):
        nnmpi.save(model().state_dict(), tmp_path / "m")


def test_a_place_is_refused_before_a_run(tmp_path: Path) -> None:
    with refused("cannot save", "name too long", "another place"):
        saving.check_target(tmp_path / ("m" * 300))
    saving.check_target(tmp_path / ("m" * 255))
    nnmpi.save(model().state_dict(), tmp_path / ("m" * 255))


def test_files_of_others_are_left_alone(tmp_path: Path) -> None:
    (tmp_path / "m.part").write_text("mine")
    nnmpi.save(model().state_dict(), tmp_path / "m")
    assert (tmp_path / "m.part").read_text() == "mine"
    assert sorted(os.listdir(tmp_path)) == ["m", "m.part"]


def test_threads_may_save_to_one_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both have written before either puts its file in place; one of them wins, whole."""
    both, replace = Barrier(2), os.replace

    def late(*paths: Any) -> None:
        both.wait(10)
        replace(*paths)

    monkeypatch.setattr(saving.os, "replace", late)
    states = [{"a": np.full(1000, i)} for i in range(2)]
    with ThreadPoolExecutor() as pool:
        list(pool.map(lambda state: nnmpi.save(state, tmp_path / "m"), states))
    assert os.listdir(tmp_path) == ["m"]
    found = nnmpi.load(tmp_path / "m")["a"]
    assert any(np.array_equal(found, state["a"]) for state in states)


def full(*_: Any) -> None:
    raise OSError(28, "No space left on device")


def test_an_old_file_survives_a_failed_save(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, state = tmp_path / "m", model().state_dict()
    nnmpi.save(state, path)
    for step in ("fsync", "replace"):
        with monkeypatch.context() as patch:
            patch.setattr(saving.os, step, full)
            with refused(f"cannot save {path}: No space left"):
                nnmpi.save(moved(model()), path)
    with refused(f"cannot save {path}", "object"):
        nnmpi.save({"a": np.array([None])}, path)
    assert os.listdir(tmp_path) == ["m"]
    assert nnmpi.load(path).keys() == state.keys()
    np.testing.assert_array_equal(nnmpi.load(path)["0.weight"], state["0.weight"])


def digits(t: Any) -> Any:
    """The model by hand in PyTorch; `t` is torch.nn."""
    return t.Sequential(
        *(t.Conv2d(1, 32, 3, padding=1, bias=False), t.BatchNorm2d(32), t.ReLU(), t.MaxPool2d(2)),
        *(t.Conv2d(32, 64, 3, padding=1, bias=False), t.BatchNorm2d(64), t.ReLU(), t.MaxPool2d(2)),
        *(t.Flatten(), t.Dropout(0.25), t.Linear(256, 10)),
    )


def mnist(t: Any) -> Any:
    return t.Sequential(
        *(t.Conv2d(1, 32, 3, padding=1), t.ReLU(), t.MaxPool2d(2)),
        *(t.Conv2d(32, 64, 3, padding=1), t.ReLU(), t.MaxPool2d(2)),
        *(t.Flatten(), t.Linear(3136, 128), t.ReLU(), t.Linear(128, 64), t.ReLU()),
        t.Linear(64, 10),
    )


@pytest.mark.parametrize(
    ("name", "by_hand", "size"), [("digits-cnn", digits, 8), ("mnist-cnn", mnist, 28)]
)
def test_pytorch_reads_and_writes_the_same_files(
    name: str, by_hand: Callable[[Any], Any], size: int, tmp_path: Path
) -> None:
    torch = pytest.importorskip(
        "torch", reason="PyTorch is not installed: NNMPI_WITH_TORCH=1 scripts/test installs it"
    )
    from safetensors import torch as files  # it needs PyTorch

    rng = np.random.default_rng(0)
    x = rng.standard_normal((8, 1, size, size)).astype("float32")
    ours, theirs = MODELS[name](), by_hand(torch.nn)

    def agree() -> None:
        ours.eval()
        theirs.eval()
        with torch.no_grad():
            expected = theirs(torch.from_numpy(x)).numpy()
        atol = 1e-5 * np.abs(expected).max()
        np.testing.assert_allclose(ours(nnmpi.tensor(x)).numpy(), expected, rtol=0, atol=atol)

    ours(nnmpi.tensor(x))  # statistics that are not those of the start
    nnmpi.save(ours.state_dict(), tmp_path / "ours")
    theirs.load_state_dict(files.load_file(tmp_path / "ours"))
    agree()
    ours, theirs = MODELS[name](), by_hand(torch.nn)
    theirs(torch.from_numpy(x))
    files.save_file(theirs.state_dict(), tmp_path / "theirs")
    ours.load_state_dict(nnmpi.load(tmp_path / "theirs"))
    agree()
