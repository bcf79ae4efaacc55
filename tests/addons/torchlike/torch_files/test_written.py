"""Files called .pt and .pth, which `torch.load` reads without running code of theirs."""

import io
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.datafiles import refused
from helpers.ops.oracle import needs_torch, pytorch

import nnmpi
from nnmpi import nn

STATE: dict[Any, Any] = {
    "arrays": {
        **{k: np.array([[0, 1, 2], [3, 4, 5]], k) for k in ("float64", "float32", "float16")},
        **{k: np.array([-1, 2], k) for k in ("int64", "int32", "int16", "int8", "bool")},
        "uint8": np.arange(3, dtype="uint8"),
        "transposed": np.arange(6.0).reshape(2, 3).T,
        "number": np.array(3.5),
        "nothing": np.zeros((0, 3)),
    },
    "numbers": [3, -(1 << 40), 1 << 80, 0.25, float("inf"), True, False, None],
    "nested": (1, (), [{}, {2: "a", "é": "ü"}], []),
    "scalar": np.float32(2.5),
}


def same(a: Any, b: Any) -> None:
    """The structures are equal, with tensors of any library in the place of arrays."""
    if isinstance(a, dict):
        assert [*a] == [*b]
        for key in a:
            same(a[key], b[key])
    elif isinstance(a, list | tuple):
        assert type(a) is type(b)
        for x, y in zip(a, b, strict=True):
            same(x, y)
    elif isinstance(a, np.ndarray):
        assert (a.dtype, a.shape) == (b.numpy().dtype, tuple(b.shape))
        np.testing.assert_array_equal(a, b.numpy())
    else:
        assert a == b


@pytest.mark.parametrize("name", ["x.pt", "x.pth", "x.pth.tar"])
def test_both_libraries_read_what_is_saved(name: str, tmp_path: Path) -> None:
    file = tmp_path / name
    nnmpi.save(STATE, file)
    assert zipfile.is_zipfile(file)
    same(STATE, nnmpi.load(file))
    with file.open("rb") as first:
        before = first.read()
    nnmpi.save(STATE, file)
    assert file.read_bytes() == before


@needs_torch
def test_pytorch_reads_what_is_saved(tmp_path: Path) -> None:
    torch, model = pytorch(), nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4))
    opt = nnmpi.optim.SGD(model.parameters(), momentum=0.9)
    model(nnmpi.ones(2, 3, 8, 8)).sum().backward()
    opt.step()
    file = tmp_path / "x.pt"
    nnmpi.save({"model": model.state_dict(), "opt": opt.state_dict(), "state": STATE}, file)
    state = torch.load(file, weights_only=True)
    same(STATE, state["state"])
    theirs = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.BatchNorm2d(4))
    theirs.load_state_dict(state["model"])
    y = theirs.eval()(torch.ones(1, 3, 8, 8)).detach().numpy()
    np.testing.assert_allclose(y, model.eval()(nnmpi.ones(1, 3, 8, 8)).numpy(), 1e-5, 1e-6)
    assert state["opt"]["param_groups"][0]["momentum"] == 0.9
    nnmpi.save(nnmpi.ones(2).bfloat16(), file)
    assert torch.load(file).tolist() == [1, 1]
    with file.open("wb") as opened:
        nnmpi.save({"a": nnmpi.ones(2)}, opened)
    assert torch.load(file)["a"].tolist() == [1, 1]


def test_what_such_a_file_cannot_have(tmp_path: Path) -> None:
    file = tmp_path / "x.pt"
    nnmpi.save(nnmpi.ones(2), file)
    with refused("a has type uint32", "convert it to one of float64"):
        nnmpi.save({"a": np.zeros(2, "uint32")}, file)
    with refused("state['a'] is a function"):
        nnmpi.save({"a": nnmpi.ones}, file)
    with refused("have no metadata: name it x.safetensors"):
        nnmpi.save({"a": nnmpi.ones(2)}, file, {"model": "mine"})
    assert nnmpi.load(file).tolist() == [1, 1]
    memory = io.BytesIO()
    nnmpi.save({"a": nnmpi.ones(2)}, memory)
    assert memory.getvalue()[8:9] == b"{"  # safetensors
