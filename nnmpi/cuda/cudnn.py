"""Convolution by cuDNN, through its Python front end, on arrays of CuPy with channels last.

    forward   y = conv(x, w)        x (N, H, W, C), w (O, kh, kw, C / groups), y (N, h, w, O)
    data      dx from dy, w
    weights   dw from x, dy

A graph is built once for its shapes, types, thread and device, and gets addresses. Only engines
that give the same bits each time are used, since the same layout gives the same bits; and only
those that compute in float32, unless TF32 is allowed.
"""

import os
import warnings
from collections.abc import Callable, Sequence
from functools import lru_cache
from importlib import import_module
from threading import get_ident
from typing import Any, NamedTuple

from nnmpi.backend import Array, allows_tf32, xp_of

TYPES = {"float32": "FLOAT", "float16": "HALF", "bfloat16": "BFLOAT16"}
"""The types of arrays, and cuDNN's names of them; sums are float32."""

TensorSizes = tuple[int, int, int, int]  # of a tensor, channels last
Ends = tuple[int, int]  # along the rows and along the columns


class Spec(NamedTuple):
    """What a convolution is: all that its graphs depend on."""

    x: TensorSizes
    w: TensorSizes
    y: TensorSizes
    before: Ends
    after: Ends
    stride: Ends
    dilation: Ends
    dtype: str
    tf32: bool = False


class Operand(NamedTuple):
    """An argument of a graph: its name there, and which sizes of the Spec it has."""

    name: str
    sizes: str


class CudnnOp(NamedTuple):
    """An operation of cuDNN."""

    operation: str
    inputs: tuple[Operand, Operand]
    output: str


FORWARD = CudnnOp("conv_fprop", (Operand("image", "x"), Operand("weight", "w")), "y")
DATA = CudnnOp("conv_dgrad", (Operand("loss", "y"), Operand("filter", "w")), "x")
WEIGHTS = CudnnOp("conv_wgrad", (Operand("image", "x"), Operand("loss", "y")), "w")


class CudnnGraph(NamedTuple):
    """A built graph: its tensors in the order of `Kind`, and the bytes that it needs besides."""

    graph: Any
    tensors: tuple[Any, ...]
    workspace: int


ALIGNED = 16
"""Bytes."""


@lru_cache(maxsize=1)
def library() -> Any:
    """The front end, or None where it or cuDNN itself is not installed.

    It looks for CUDA's runtime by name alone, and pip installs that where no name finds it.
    """
    try:
        path = import_module("cuda.pathfinder").load_nvidia_dynamic_lib("cudart").abs_path
        os.environ.setdefault("CUDNN_FRONTEND_CUDART_LIB_NAME", path)
    except (ImportError, OSError, RuntimeError):
        pass  # a system's CUDA, which is found by its name
    try:
        found = import_module("cudnn")
        found.backend_version()
    except (ImportError, OSError, RuntimeError):
        return None
    return found


def version() -> str:
    """The version of cuDNN, or what is used in its place."""
    found = library()
    return "none: convolutions by im2col" if found is None else str(found.backend_version())


def spec_of(
    x: Array, w: Array, windows: Sequence[Any], sizes: tuple[int, int], groups: int
) -> Spec | None:
    """The Spec of x (N, H, W, C) and w (kh, kw, C / groups, O) to images of `sizes`, or None.

    None: cuDNN does not do it, or is not there.
    """
    kh, kw, C, O = w.shape
    fits = x.dtype.name in TYPES and x.size and O and C * groups == x.shape[3]
    if library() is None or not fits or min(window.after for window in windows) < 0:
        return None

    def along(name: str) -> Ends:
        rows, columns = (getattr(window, name) for window in windows)
        return rows, columns

    return Spec(
        *(x.shape, (O, kh, kw, C), (x.shape[0], *sizes, O)),
        *(along("before"), along("after"), along("stride"), along("dilation")),
        *(x.dtype.name, allows_tf32(xp_of(x))),
    )


def can(spec: Spec, xp: Any, backward: bool) -> bool:
    """Whether cuDNN has engines for a convolution, and for its gradients too."""
    kinds = (FORWARD, DATA, WEIGHTS) if backward else (FORWARD,)
    return all(_graph(kind, spec, *_here(xp)) is not None for kind in kinds)


def run(kind: CudnnOp, spec: Spec, inputs: Sequence[Array], output: Array) -> None:
    """Write the output, from contiguous arrays in the order of `kind`."""
    xp = xp_of(output)
    here = _here(xp)
    found, handle = _graph(kind, spec, *here), _handle(*here)
    assert found is not None, "can() was not asked"
    library().set_stream(handle=handle, stream=xp.cuda.get_current_stream().ptr)
    workspace = xp.empty(max(found.workspace, 1), "uint8")
    # graphs are built for addresses that CuPy gives to whole arrays: parts of one may lie between
    arrays = (*(a if a.data.ptr % ALIGNED == 0 else a.copy() for a in inputs), output)
    pack = {t: a.data.ptr for t, a in zip(found.tensors, arrays, strict=True)}
    found.graph.execute(pack, workspace.data.ptr, handle=handle)


def _here(xp: Any) -> tuple[int, int]:
    """The device and the thread: ranks may be threads, and no two may have one handle."""
    return int(xp.cuda.runtime.getDevice()), get_ident()


@lru_cache(maxsize=64)
def _handle(device: int, thread: int) -> Any:
    return library().create_handle()


@lru_cache(maxsize=1024)
def _graph(kind: CudnnOp, spec: Spec, device: int, thread: int) -> CudnnGraph | None:
    """The graph, or None if cuDNN has no engine for it."""
    lib = library()
    dtype, total = getattr(lib.data_type, TYPES[spec.dtype]), lib.data_type.FLOAT
    graph = lib.pygraph(
        io_data_type=dtype,
        intermediate_data_type=total,
        compute_data_type=total,
        handle=_handle(device, thread),
    )
    inputs, output = described(graph, kind, spec, dtype)
    dims = _dims(getattr(spec, kind.output))
    output.set_output(True).set_data_type(dtype).set_dim(dims["dim"]).set_stride(dims["stride"])
    try:
        _build(graph, spec)
    except lib.cudnnGraphNotSupportedError:
        return None
    except (RuntimeError, ValueError) as error:  # so it declines what it cannot describe
        warnings.warn(f"cuDNN refuses a convolution, im2col takes it: {error}", stacklevel=2)
        return None
    return CudnnGraph(graph, (*inputs, output), graph.get_workspace_size())


def described(graph: Any, kind: CudnnOp, spec: Spec, dtype: Any) -> tuple[list[Any], Any]:
    """The inputs of an operation that is added to a graph, and its output."""
    inputs = {
        name: graph.tensor(name=name, data_type=dtype, **_dims(getattr(spec, sizes)))
        for name, sizes in kind.inputs
    }
    operation: Callable[..., Any] = getattr(graph, kind.operation)
    output = operation(
        **inputs,
        pre_padding=list(spec.before),
        post_padding=list(spec.after),
        stride=list(spec.stride),
        dilation=list(spec.dilation),
    )
    return [*inputs.values()], output


def _dims(sizes: TensorSizes) -> dict[str, list[int]]:
    """Sizes (n, h, w, c), channels last in memory, as cuDNN names them: (n, c, h, w)."""
    n, h, w, c = sizes
    return {"dim": [n, c, h, w], "stride": [h * w * c, 1, w * c, c]}


def _build(graph: Any, spec: Spec) -> None:
    """Choose an engine; raises cudnnGraphNotSupportedError if none is left."""
    note, heuristic = library().numerical_note, library().heur_mode
    unwanted = [note.NONDETERMINISTIC, note.REDUCED_PRECISION_REDUCTION]
    if spec.dtype == "float32" and not spec.tf32:
        unwanted += [note.TENSOR_CORE, note.DOWN_CONVERT_INPUTS]
    graph.validate()
    graph.build_operation_graph()
    graph.create_execution_plans([heuristic.A, heuristic.FALLBACK])
    graph.deselect_numeric_notes(unwanted)
    graph.check_support()
    graph.build_plans()
