"""A module that stands for cuDNN's front end: graphs are checked, and carried out in NumPy.

`install` puts it in the place of `cudnn`, and gives the stand-in a stream and a device. A graph
reads and writes memory at the addresses that it gets, with the sizes and strides that its tensors
were declared with: a wrong stride, name or address gives wrong numbers or an error.
"""

import ctypes
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import strictarray
from strictarray._counting import launched

from nnmpi.cuda import cudnn

STREAM = 77
WORKSPACE = 48
DTYPES = {"FLOAT": "float32", "HALF": "float16"}


class NotSupportedError(Exception):
    """The module's cudnnGraphNotSupportedError."""


class Tensor:
    """A tensor of a graph."""

    def __init__(self, dim: Sequence[int] = (), stride: Sequence[int] = (), **named: Any) -> None:
        self.dim, self.stride, self.data_type = dim, stride, named.get("data_type")
        self.is_output = False

    def set_output(self, value: bool) -> "Tensor":
        self.is_output = value
        return self

    def set_data_type(self, value: str) -> "Tensor":
        self.data_type = value
        return self

    def set_dim(self, value: list[int]) -> "Tensor":
        self.dim = value
        return self

    def set_stride(self, value: list[int]) -> "Tensor":
        self.stride = value
        return self

    def at(self, address: int) -> np.ndarray:
        """The array in memory."""
        assert type(address) is int
        dtype = np.dtype(DTYPES[str(self.data_type)])
        numbers = 1 + sum((n - 1) * s for n, s in zip(self.dim, self.stride, strict=True))
        memory = (ctypes.c_byte * (numbers * dtype.itemsize)).from_address(address)
        strides = [s * dtype.itemsize for s in self.stride]
        return np.ndarray(self.dim, dtype, memory, strides=strides)


class Graph:
    """pygraph: one convolution."""

    STEPS = ("validate", "build_operation_graph", "create_execution_plans", "check_support")

    def __init__(self, fake: "Fake", **types: Any) -> None:
        self.fake, self.handle, self.done = fake, types.pop("handle"), list[str]()
        assert types["compute_data_type"] == types["intermediate_data_type"] == "FLOAT"
        fake.graphs.append(self)

    def tensor(self, *, name: str, dim: list[int], stride: list[int], data_type: str) -> Tensor:
        return Tensor(dim, stride, data_type=data_type)

    def conv_fprop(self, *, image: Tensor, weight: Tensor, **ends: list[int]) -> Tensor:
        return self._convolution("fprop", image, weight, Tensor(), ends)

    def conv_dgrad(self, *, loss: Tensor, filter: Tensor, **ends: list[int]) -> Tensor:
        return self._convolution("dgrad", Tensor(), filter, loss, ends)

    def conv_wgrad(self, *, image: Tensor, loss: Tensor, **ends: list[int]) -> Tensor:
        return self._convolution("wgrad", image, Tensor(), loss, ends)

    def _convolution(self, kind: str, x: Tensor, w: Tensor, y: Tensor, ends: Any) -> Tensor:
        self.kind, self.tensors, self.ends = kind, (x, w, y), ends
        assert ends.keys() == {"pre_padding", "post_padding", "stride", "dilation"}
        return {"fprop": y, "dgrad": x, "wgrad": w}[kind]

    def validate(self) -> None:
        assert sum(t.is_output for t in self.tensors) == 1
        assert all(len(t.dim) == len(t.stride) == 4 for t in self.tensors)
        assert all(min(ends) >= 0 for ends in self.ends.values())
        self.done.append("validate")

    def build_operation_graph(self) -> None:
        self.done.append("build_operation_graph")

    def create_execution_plans(self, heuristics: list[str]) -> None:
        assert heuristics == ["A", "FALLBACK"]
        self.done.append("create_execution_plans")

    def deselect_numeric_notes(self, notes: list[str]) -> None:
        assert self.done[-1] == "create_execution_plans"
        self.without = set(notes)

    def check_support(self) -> None:
        if self.kind in self.fake.unsupported:
            raise NotSupportedError("no engine")
        self.done.append("check_support")

    def build_plans(self) -> None:
        assert tuple(self.done) == self.STEPS
        self.done.append("build_plans")

    def get_workspace_size(self) -> int:
        return WORKSPACE

    def execute(self, pack: dict[Tensor, int], workspace: int, *, handle: Any) -> None:
        assert self.done[-1] == "build_plans"
        assert handle is self.handle
        assert handle.stream == STREAM
        ctypes.memset(workspace, 0xFF, WORKSPACE)
        assert set(pack) == set(self.tensors)
        x, w, y = (t.at(pack[t]) for t in self.tensors)
        convolve(self.kind, x, w, y, **self.ends)
        self.fake.executed.append(self.kind)
        launched("kernel", self.kind)


def convolve(
    kind: str,
    x: np.ndarray,
    w: np.ndarray,
    y: np.ndarray,
    pre_padding: list[int],
    post_padding: list[int],
    stride: list[int],
    dilation: list[int],
) -> None:
    """x (N, C, H, W), w (O, C / groups, kh, kw), y (N, O, h, w): write one from the two others."""
    (_, C, H, W), (O, some, kh, kw), (_, _, h, v) = x.shape, w.shape, y.shape
    groups = C // some
    ends = list(zip(pre_padding, post_padding, strict=True))
    padded = np.pad(np.zeros_like(x) if kind == "dgrad" else x, [(0, 0), (0, 0), *ends])
    total = np.zeros({"fprop": y, "dgrad": padded, "wgrad": w}[kind].shape)
    for i, j, g in np.ndindex(kh, kw, groups):
        rows = slice(i * dilation[0], i * dilation[0] + stride[0] * (h - 1) + 1, stride[0])
        columns = slice(j * dilation[1], j * dilation[1] + stride[1] * (v - 1) + 1, stride[1])
        ins, outs = (
            np.s_[:, g * some : (g + 1) * some],
            slice(g * O // groups, (g + 1) * O // groups),
        )
        place = padded[ins][:, :, rows, columns].astype("float64")
        if kind == "fprop":
            total[:, outs] += np.einsum("nchv,oc->nohv", place, w[outs, :, i, j])
        elif kind == "dgrad":
            found = np.einsum("nohv,oc->nchv", y[:, outs].astype("float64"), w[outs, :, i, j])
            total[ins][:, :, rows, columns] += found
        else:
            total[outs, :, i, j] += np.einsum("nohv,nchv->oc", y[:, outs].astype("float64"), place)
    if kind == "fprop":
        y[...] = total
    elif kind == "dgrad":
        x[...] = total[:, :, pre_padding[0] :, pre_padding[1] :][:, :, :H, :W]
    else:
        w[...] = total


class Fake:
    """The module; what was built and carried out."""

    cudnnGraphNotSupportedError = NotSupportedError  # noqa: N815 (the module's name)
    data_type = SimpleNamespace(FLOAT="FLOAT", HALF="HALF", BFLOAT16="BFLOAT16")
    heur_mode = SimpleNamespace(A="A", FALLBACK="FALLBACK")
    numerical_note = SimpleNamespace(
        NONDETERMINISTIC="nondeterministic",
        REDUCED_PRECISION_REDUCTION="reduced",
        TENSOR_CORE="tensor core",
        DOWN_CONVERT_INPUTS="down convert",
    )

    def __init__(self) -> None:
        self.graphs, self.executed, self.handles = list[Graph](), list[str](), list[Any]()
        self.unsupported = set[str]()

    def backend_version(self) -> int:
        return 91000

    def create_handle(self) -> Any:
        self.handles.append(SimpleNamespace(stream=None))
        return self.handles[-1]

    def set_stream(self, *, handle: Any, stream: int) -> None:
        handle.stream = stream

    def pygraph(self, **types: Any) -> Graph:
        return Graph(self, **types)


def forget() -> None:
    """Nothing is known of a library, nor cached."""
    for cached in (cudnn.library, cudnn._handle, cudnn._graph):
        cached.cache_clear()


@contextmanager
def install(monkeypatch: pytest.MonkeyPatch) -> Iterator[Fake]:
    fake = Fake()
    device = SimpleNamespace(**vars(strictarray.cuda))
    device.get_current_stream = lambda: SimpleNamespace(ptr=STREAM)
    monkeypatch.setattr(strictarray, "cuda", device, raising=False)
    monkeypatch.setitem(sys.modules, "cudnn", fake)
    forget()
    yield fake
    forget()
