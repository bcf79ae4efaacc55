"""A module that stands for cuDNN's front end: graphs are checked, and carried out in NumPy.

`install` puts it in the place of `cudnn`. A graph reads and writes memory at the addresses that it
gets, with the sizes and strides that its tensors were declared with: a wrong stride, name or
address gives wrong numbers or an error. It declines attention that cuDNN declines.

It stays beside the emulated device, which has no cuDNN: that builds its kernels for a GPU itself,
and cannot run without one. The memory is the emulated device's, and a graph is carried out when its
stream has come to it.
"""

import ctypes
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from emulator import machine
from helpers.device import DEVICE

from nnmpi.addons.cuda import cudnn

WORKSPACE = 48
DTYPES = {"FLOAT": "float32", "HALF": "float16", "BFLOAT16": "bfloat16"}


class NotSupportedError(Exception):
    """The module's cudnnGraphNotSupportedError."""


class Tensor:
    """A tensor of a graph."""

    def __init__(self, dim: Sequence[int] = (), stride: Sequence[int] = (), **named: Any) -> None:
        self.dim, self.stride, self.data_type = dim, stride, named.get("data_type")
        self.is_output = False

    def set_uid(self, value: int) -> "Tensor":
        self.uid = value
        return self

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
        assert address % cudnn.ALIGNED == 0 or dtype.itemsize == 4
        numbers = 1 + sum((n - 1) * s for n, s in zip(self.dim, self.stride, strict=True))
        memory = (ctypes.c_byte * (numbers * dtype.itemsize)).from_address(address)
        strides = [s * dtype.itemsize for s in self.stride]
        return np.ndarray(self.dim, dtype, memory, strides=strides)


class Graph:
    """pygraph: one convolution, or attention."""

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
        self.kind, self.tensors = kind, (x, w, y)
        self.compute = partial(convolve, kind, **ends)
        assert min(map(min, ends.values())) >= 0
        assert ends.keys() == {"pre_padding", "post_padding", "stride", "dilation"}
        return {"fprop": y, "dgrad": x, "wgrad": w}[kind]

    def sdpa(self, *, q: Tensor, k: Tensor, v: Tensor, **how: Any) -> tuple[Tensor, Tensor]:
        assert how.keys() == {"name", "generate_stats", "attn_scale", "use_causal_mask"}
        assert how["generate_stats"]
        self.kind, self.tensors = "sdpa", (q, k, v, Tensor(), Tensor())
        self.compute = partial(attend, scale=how["attn_scale"], causal=how["use_causal_mask"])
        return self.tensors[3], self.tensors[4]

    def sdpa_backward(
        self, *, q: Tensor, k: Tensor, v: Tensor, o: Tensor, dO: Tensor, stats: Tensor, **how: Any
    ) -> list[Tensor]:
        deterministic = how.pop("use_deterministic_algorithm")
        assert deterministic
        assert how.keys() == {"name", "attn_scale", "use_causal_mask"}
        found = [Tensor() for _ in range(3)]
        self.kind, self.tensors = "sdpa_backward", (q, k, v, o, stats, dO, *found)
        self.compute = partial(look_back, scale=how["attn_scale"], causal=how["use_causal_mask"])
        return found

    def validate(self) -> None:
        outputs = {"sdpa": 2, "sdpa_backward": 3}.get(self.kind, 1)
        assert sum(t.is_output for t in self.tensors) == outputs
        assert all(len(t.dim) == len(t.stride) == 4 for t in self.tensors)
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
        if self.kind.startswith("sdpa") and any(t.dim[3] % 8 for t in self.tensors[:3]):
            raise NotSupportedError("hidden_dim should be multiple of 8")
        if self.kind.startswith("sdpa") and any(t.stride[3] != 1 for t in self.tensors):
            raise NotSupportedError("The stride for the last dimension should be 1")
        self.done.append("check_support")

    def build_plans(self) -> None:
        assert tuple(self.done) == self.STEPS
        self.done.append("build_plans")

    def get_workspace_size(self) -> int:
        return WORKSPACE

    def get_execution_plan_count(self) -> int:
        return 2

    def build_plan_at_index(self, k: int) -> None:
        if k == 1:
            raise NotSupportedError("the plan is excluded")

    def get_workspace_size_plan_at_index(self, k: int) -> int:
        return WORKSPACE

    def get_plan_name_at_index(self, k: int) -> str:
        return f"eng{k}"

    def execute_plan_at_index(
        self, pack: dict[int, int], workspace: int, k: int, handle: Any
    ) -> None:
        assert k == 0
        self.execute([*pack.values()], workspace, handle=handle, tensor_uids=(*pack,))

    def execute(
        self, pack: list[int], workspace: int, *, handle: Any, tensor_uids: tuple[int, ...]
    ) -> None:
        assert self.done[-1] == "build_plans"
        assert handle is self.handle
        stream = DEVICE.xp.cuda.get_current_stream()
        assert handle.stream == stream.ptr
        if stream.is_capturing():  # a graph cannot call Python
            raise RuntimeError("this stand-in of cuDNN is not captured")
        machine.library().emulator_call(self.kind.encode(), ctypes.c_void_p(handle.stream))
        ctypes.memset(workspace, 0xFF, WORKSPACE)
        assert tensor_uids == (*sorted(t.uid for t in self.tensors),)
        places = dict(zip(tensor_uids, pack, strict=True))
        self.compute(*(t.at(places[t.uid]) for t in self.tensors))
        self.fake.executed.append(self.kind)


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


def probabilities(
    q: np.ndarray, k: np.ndarray, scale: float, causal: bool
) -> tuple[np.ndarray, np.ndarray]:
    """Of q (N, H, T, D) and k (N, H, S, D), and the logarithm of their sums (N, H, T, 1)."""
    s = q @ k.swapaxes(-1, -2) * scale
    if causal:
        s[..., ~np.tri(*s.shape[-2:], dtype=bool)] = -np.inf
    largest = s.max(-1, keepdims=True)
    lse = largest + np.log(np.exp(s - largest).sum(-1, keepdims=True))
    return np.exp(s - lse), lse


def of_each_head(a: np.ndarray, like: np.ndarray) -> np.ndarray:
    """Keys or values in float64, repeated for the queries that share them."""
    return np.repeat(a.astype("float64"), like.shape[1] // a.shape[1], axis=1)


def attend(
    q: np.ndarray, k: np.ndarray, v: np.ndarray, y: np.ndarray, lse: np.ndarray, **how: Any
) -> None:
    p, lse[...] = probabilities(q.astype("float64"), of_each_head(k, q), **how)
    y[...] = p @ of_each_head(v, q)


def look_back(*arrays: np.ndarray, scale: float, causal: bool) -> None:
    """From q, k, v, y, lse and dy: write dq, dk and dv."""
    q, k, v, y, lse, dy, dq, dk, dv = arrays
    q, y, dy = (a.astype("float64") for a in (q, y, dy))
    K, V = of_each_head(k, q), of_each_head(v, q)
    s = q @ K.swapaxes(-1, -2) * scale
    if causal:
        s[..., ~np.tri(*s.shape[-2:], dtype=bool)] = -np.inf
    p = np.exp(s - lse)
    ds = p * (dy @ V.swapaxes(-1, -2) - (dy * y).sum(-1, keepdims=True)) * scale
    dq[...] = ds @ K
    for d, found in ((dk, ds.swapaxes(-1, -2) @ q), (dv, p.swapaxes(-1, -2) @ dy)):
        N, H, S, D = found.shape
        d[...] = found.reshape(N, d.shape[1], H // d.shape[1], S, D).sum(2)


class Fake:
    """The module; what was built and carried out."""

    __version__ = "1.31.0"
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
    monkeypatch.setitem(sys.modules, "cudnn", fake)
    forget()
    yield fake
    forget()
