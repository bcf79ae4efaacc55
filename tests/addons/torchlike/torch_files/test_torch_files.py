"""Files of PyTorch: new.pt and old.pt hold `STATE`, as PyTorch 2.13 writes it, and did before."""

import io
import os
import pickle
import pickletools
import struct
import sys
import tracemalloc
import zipfile
from collections import OrderedDict
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from helpers.datafiles import refused
from helpers.ops.oracle import needs_torch, pytorch

import nnmpi
from nnmpi import nn
from nnmpi.addons.torchlike.files.torch_files import reading
from nnmpi.addons.torchlike.files.torch_files.unpickle import Unpickler

HERE = Path(__file__).parent
FILES = {name: (HERE / f"{name}.pt").read_bytes() for name in ("new", "old")}

W = np.arange(30.0).reshape(6, 5)
STATE: dict[str, Any] = {
    "epoch": 3,
    "name": "häß",
    "w": W,
    "view": W.T[1:4, ::2],
    "half": np.array([0.5, -3.0], ml_dtypes.bfloat16),
    "sizes": ((1, 2), [True, None, 2**70]),
    "words": np.array([1, 65535], "uint16"),
    "expanded": np.ones(4, "float32"),
    "empty": np.zeros((0, 3), "float32"),
    "scalar": np.array(3),
    "best": 0.25,
    "set": {1, 2},
    "dtype": nnmpi.float32,
    "device": "cpu",
    "parameter": np.ones(2, "float32"),
}


def equal(found: Any, wanted: Any) -> None:
    if isinstance(wanted, np.ndarray):
        assert type(found) is nnmpi.Tensor
        assert (found.dtype, found.shape) == (wanted.dtype, wanted.shape)
        np.testing.assert_array_equal(found.detach(), wanted)
    else:
        assert type(found) is type(wanted)
        assert found == wanted


@pytest.mark.parametrize("name", FILES)
def test_the_values_of_a_file(name: str) -> None:
    found = nnmpi.load(HERE / f"{name}.pt", map_location="cpu")
    for key, value in STATE.items():
        equal(found[key], value)
    assert found.keys() == STATE.keys() | {"model", "optimizer", "scheduler"}
    assert np.shares_memory(found["view"], found["w"])
    assert [key for key in STATE if getattr(found[key], "requires_grad", False)] == ["parameter"]
    assert found["optimizer"]["param_groups"][0]["momentum"] == 0.9
    assert found["optimizer"]["state"][4]["momentum_buffer"].shape == (2, 4)
    assert found["scheduler"]["milestones"] == {2: 1, 4: 1}


@pytest.mark.parametrize("name", FILES)
def test_a_model_takes_its_state(name: str) -> None:
    state = nnmpi.load(HERE / f"{name}.pt")["model"]
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2, bias=False))
    model.load_state_dict(state)
    for key, value in model.state_dict().items():
        np.testing.assert_array_equal(value, state[key])


@pytest.mark.parametrize("name", FILES)
def test_bfloat16_is_widened_where_numpy_lacks_it(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reading, "has_bfloat16", lambda: False)
    half = nnmpi.load(HERE / f"{name}.pt")["half"]
    equal(half, np.array([0.5, -3.0], "float32"))


@needs_torch
@pytest.mark.parametrize("protocol", [2, 4, 5])
@pytest.mark.parametrize("is_new", [True, False])
def test_every_type_and_protocol(protocol: int, is_new: bool, tmp_path: Path) -> None:
    torch, file = pytorch(), tmp_path / "x.pth"
    names = [*dict.fromkeys((*reading.STORAGES.values(), *reading.OTHERS))]
    state = {name: torch.arange(12).reshape(3, 4).to(getattr(torch, name)) for name in names}
    views = {f"{name} view": t.T[1:, ::2] for name, t in state.items()}
    state = {**state, **views, "many": [*range(3000)], "text": "x" * 300}
    torch.save(state, file, pickle_protocol=protocol, _use_new_zipfile_serialization=is_new)
    found = nnmpi.load(file, weights_only=True)
    for name in (*names, *views):
        wanted = state[name]
        assert found[name].dtype.name == str(wanted.dtype).removeprefix("torch.")
        np.testing.assert_array_equal(found[name].astype("f8"), wanted.double().numpy())
    assert (found["many"], found["text"]) == (state["many"], state["text"])


@needs_torch
@pytest.mark.parametrize("is_new", [True, False])
def test_other_objects_are_refused_by_name(is_new: bool, tmp_path: Path) -> None:
    torch, file = pytorch(), tmp_path / "x.pt"
    for value, name in (
        (torch.nn.Linear(2, 2), "torch.nn.modules.linear.Linear"),
        (np.ones(2), "_reconstruct"),
        (torch.ones(2, dtype=torch.complex64), "torch.ComplexFloatStorage"),
        ({"s": slice(1)}, "slice"),
    ):
        torch.save(value, file, _use_new_zipfile_serialization=is_new)
        with refused("x.pt", f"{name}, and nnmpi reads tensors", "save model.state_dict()"):
            nnmpi.load(file)


# ---- hostile files


def archive(content: bytes, size: int = 40, **about: Any) -> bytes:
    """A file with this pickle, and a storage of so many bytes."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", **about) as file:
        file.writestr("a/data.pkl", content)
        file.writestr("a/data/0", bytes(size))
    return buffer.getvalue()


def read(content: bytes, tmp_path: Path) -> Any:
    file = tmp_path / "x.pt"
    file.write_bytes(content)
    return nnmpi.load(file)


class Code:
    """An object whose pickle calls a function when Python's module reads it."""

    def __init__(self, function: Callable[..., Any], *arguments: Any) -> None:
        self.call = function, arguments

    def __reduce__(self) -> Any:
        return self.call


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_no_code_of_a_file_runs(protocol: int, tmp_path: Path) -> None:
    made = tmp_path / "made"
    for code in (
        Code(os.mkdir, os.fspath(made)),
        Code(eval, f"__import__('os').mkdir({os.fspath(made)!r})"),
        Code(getattr, OrderedDict, "fromkeys"),
    ):
        for value in (code, {"a": [code]}, OrderedDict(a=code)):
            content = pickle.dumps(value, protocol)
            for file in (archive(content), content):
                with refused("x.pt", "and runs no code of a file"):
                    read(file, tmp_path)
    assert not made.exists()
    pickle.loads(pickle.dumps(Code(os.mkdir, os.fspath(made))))
    assert made.exists()


def view(offset: Any = 0, shape: Any = (2,), strides: Any = (1,), length: int = 10) -> bytes:
    """The pickle of a view of the storage, which has ten float32."""
    head = b"\x80\x02ctorch._utils\n_rebuild_tensor_v2\n("
    storage = (
        b"(X\x07\x00\x00\x00storagectorch\nFloatStorage\nX\x01\x00\x00\x000X\x03\x00\x00\x00cpu"
    )
    parts = [pickle.dumps(x, 2)[2:-1] for x in (offset, shape, strides, False, None)]
    return head + storage + pickle.dumps(length, 2)[2:-1] + b"tQ" + b"".join(parts) + b"tR."


VIEWS = {
    "beyond the end": (9, (2,), (1,)),
    "far beyond": (0, (2, 2), (2**62, 2**62)),
    "before the begin": (-1, (2,), (1,)),
    "a negative stride": (5, (2,), (-1,)),
    "a negative length": (0, (-2,), (1,)),
    "fewer strides": (0, (2, 1), (1,)),
    "no numbers": (0, (2.0,), (1,)),
    "a shape that is no tuple": (0, 2, 1),
    "more elements than addresses": (0, (2**40, 2**40), (0, 0)),
    "too many axes": (0, (1,) * 100, (1,) * 100),
}


def test_views_of_a_storage(tmp_path: Path) -> None:
    np.testing.assert_array_equal(read(archive(view(8)), tmp_path), np.zeros(2, "float32"))
    assert read(archive(view(0, (10**5, 10**5), (0, 0))), tmp_path).array.strides == (0, 0)


@pytest.mark.parametrize("case", VIEWS)
def test_views_beyond_a_storage_are_refused(case: str, tmp_path: Path) -> None:
    with refused("x.pt", "not a complete file of torch.save"):
        read(archive(view(*VIEWS[case])), tmp_path)


def nested_tuples(n: int) -> bytes:
    """A tuple that has another one twice, and so on, as a key: its hash would take for ever."""
    return b"\x80\x02})" + b"q\x00h\x00\x86" * n + b"Ns."


def of_one_hash(make: Callable[[Iterable[int]], Any]) -> bytes:
    """What `make` returns for 199 integers whose hash is 0."""
    return pickle.dumps(make(k * sys.hash_info.modulus for k in range(1, 200)), 4)


def huge_archive() -> bytes:
    """Entries that all are the same bytes, more of them than the file has."""
    content = archive(b"\x80\x02N.", 1000)
    at = content.rindex(b"PK\x01\x02")
    end = content.rindex(b"PK\x05\x06")
    entry = bytearray(content[at:end])
    entries = bytearray(content[:end])
    for i in range(50):
        entry[-1] = ord("A") + i
        entries += entry
    tail = bytearray(content[end:])
    struct.pack_into("<HHI", tail, 8, 52, 52, len(entries) - content.index(b"PK\x01\x02"))
    return bytes(entries + tail)


TEN_GB = (10**10).to_bytes(8, "little")

HOSTILE = {
    "a compressed archive": (
        archive(b"\x80\x02" + b"N0" * 1000, compression=zipfile.ZIP_DEFLATED),
        "a compressed archive",
    ),
    "entries of the same bytes": (huge_archive(), "more bytes than the file"),
    "a key of nested tuples": (archive(nested_tuples(90)), "a key that is a tuple"),
    "a dictionary of keys of one hash": (archive(of_one_hash(dict.fromkeys)), "keys of one hash"),
    "a set of tuples of one hash": (
        archive(of_one_hash(lambda keys: {(None, key) for key in keys})),
        "keys of one hash",
    ),
    "a memo of 4 G entries": (archive(b"\x80\x02Nr\xff\xff\xff\xffj\xff\xff\xff\xfe."), "KeyError"),
    "a text of 10 GB": (archive(b"\x80\x04\x8d" + TEN_GB + b"a."), "10000000000 bytes"),
    "bytes of 10 GB": (archive(b"\x80\x05\x96" + TEN_GB + b"a."), "10000000000 bytes"),
    "a call of a call": (archive(b"\x80\x02ccollections\nOrderedDict\n)R)R."), "in the place of a"),
    "a type that is called": (archive(b"\x80\x02ctorch\nfloat32\n)R."), "in the place of a"),
    "no value": (archive(b"\x80\x02."), "not enough values"),
    "not a pickle": (archive(b"text"), "not a complete file"),
    "an empty file": (b"\x80", "not a complete file"),
    "an old file with a storage of 10 GB": (
        FILES["old"].replace(b"K\x1eNt", b"\x8a\x05\x00\xe4\x0bT\x02Nt"),
        "storages that are larger than the file",
    ),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_hostile_files_are_refused(case: str, tmp_path: Path) -> None:
    content, words = HOSTILE[case]
    tracemalloc.start()
    with refused("cannot load", "x.pt", words):
        read(content, tmp_path)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 1 << 23


def mutated(content: bytes, rng: np.random.Generator) -> bytes:
    """The file with a few bytes changed, taken out or repeated, or cut off."""
    changed = bytearray(content)
    for _ in range(rng.integers(1, 4)):
        at, kind = int(rng.integers(len(changed))), rng.integers(4)
        if kind == 0:
            changed[at] = rng.integers(256)
        elif kind == 1:
            del changed[at : at + int(rng.integers(1, 9))]
        elif kind == 2:
            changed[at:at] = changed[at : at + int(rng.integers(1, 40))]
        else:
            changed[at : at + 4] = rng.bytes(4)
    return bytes(changed[: rng.integers(2, len(changed))] if rng.random() < 0.1 else changed)


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("what", ["the file", "its pickle"])
def test_mutations_raise_or_give_values(what: str, name: str, tmp_path: Path) -> None:
    """100 each: no error but ValueError, and no array larger than the file."""
    rng = np.random.default_rng(0)
    tracemalloc.start()
    outcomes = set[str]()
    for _ in range(100):
        content = mutated(FILES[name], rng)
        if what == "its pickle":
            content = _with_mutated_pickle(FILES[name], rng)
        try:
            read(content, tmp_path)
            outcomes.add("read")
        except ValueError as error:
            outcomes.add(str(error)[:11])
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert outcomes == {"read", "cannot load"}
    assert peak < 1 << 24


def _with_mutated_pickle(content: bytes, rng: np.random.Generator) -> bytes:
    """The file with a mutated pickle, and sums of it that fit."""
    if content[:2] != b"PK":
        begin = 300  # behind the first three pickles
        return content[:begin] + mutated(content[begin:], rng)
    buffer = io.BytesIO()
    with (
        zipfile.ZipFile(io.BytesIO(content)) as old,
        zipfile.ZipFile(buffer, "w") as new,
    ):
        for entry in old.infolist():
            data = old.read(entry)
            is_pickle = entry.filename.endswith("data.pkl")
            new.writestr(entry.filename, mutated(data, rng) if is_pickle else data)
    return buffer.getvalue()


def test_plain_values_are_those_of_python() -> None:
    value = [{"a": (1, -2.5, "ü", None, True, False, 2**80, ()), 3: [[], {}]}, {4, "x"}]
    again = [value, value]
    for protocol in (2, 3, 4, 5):
        content = pickletools.optimize(pickle.dumps(again, protocol))
        found = Unpickler(reading.NAMES, lambda _: None).load(io.BytesIO(content))
        assert found == again
        assert found[0] is found[1]
