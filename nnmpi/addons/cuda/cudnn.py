"""cuDNN, through its Python front end, on arrays of CuPy.

A cuDNN graph here has one operation. It is built once for each description of the operation, thread
and device, and then run on different arrays. Only deterministic engines are used, since runs with
the same layout of ranks must give the same bits; and only engines that compute in float32, unless
TF32 is allowed.

Operations of convolutions, channels last in memory:

    forward   y = conv(x, w)        x (N, H, W, C), w (O, kh, kw, C / groups), y (N, h, w, O)
    data      dx from dy, w
    weights   dw from x, dy
"""

import os
import warnings
from collections.abc import Callable, Sequence
from functools import lru_cache
from importlib import import_module
from threading import get_ident
from typing import Any, NamedTuple, Protocol

from nnmpi.addons.cuda.tf32 import allows_tf32
from nnmpi.arrays.backend import Array, xp_of

TYPES = {"float32": "FLOAT", "float16": "HALF", "bfloat16": "BFLOAT16"}
"""The dtypes of arrays, and cuDNN's names for them; sums are float32."""

OLDEST = 1, 31
"""The oldest version of the front end that is used: it takes addresses in the order of tensors."""

ALIGNED = 16
"""The alignment, in bytes, for which graphs are built; CuPy's arrays, except for views, have it."""


class CudnnOperation(Protocol):
    """A cuDNN operation: all that its graph depends on, hashable."""

    def __hash__(self) -> int: ...

    @property
    def label(self) -> str:
        """The operation's name for messages, and its way if no engine has it."""

    @property
    def dtype(self) -> str:
        """The dtype of the operation's arrays."""

    @property
    def tf32(self) -> bool:
        """True if float32 factors may be rounded to TF32."""

    def tensors(self, graph: Any) -> list[Any]:
        """Adds the operation to a graph; returns its tensors as `run` takes them."""


class CudnnGraph(NamedTuple):
    """A built graph: ids of tensors as `run` takes them, and workspace bytes."""

    graph: Any
    uids: tuple[int, ...]
    workspace: int


@lru_cache(maxsize=1)
def library() -> Any:
    """Returns cuDNN's front end; None if it or cuDNN itself is not installed, or it is too old.

    The front end finds CUDA's runtime by name alone, so this function sets the path to where pip
    installed it.
    """
    try:
        path = import_module("cuda.pathfinder").load_nvidia_dynamic_lib("cudart").abs_path
        os.environ.setdefault("CUDNN_FRONTEND_CUDART_LIB_NAME", path)
    except (ImportError, OSError, RuntimeError):
        pass  # then it is the system's CUDA, which is found by name
    try:
        front_end = import_module("cudnn")
        front_end.backend_version()
    except (ImportError, OSError, RuntimeError):
        return None
    if tuple(map(int, front_end.__version__.split(".")[:2])) >= OLDEST:
        return front_end
    warnings.warn(
        f"cuDNN's front end {front_end.__version__} is too old and is not used: "
        "pip install --no-deps 'nvidia-cudnn-frontend>=1.31'",
        stacklevel=2,
    )
    return None


def version() -> str:
    """Returns the version of cuDNN; without cuDNN, a text that says what computes instead."""
    front_end = library()
    if front_end is None:
        return "not used: convolutions use im2col, and attention uses matrix products"
    return str(front_end.backend_version())


def can(operation: CudnnOperation, xp: Any) -> bool:
    """True if cuDNN has an engine for this operation on this device."""
    return _graph(operation, *_device_and_thread(xp)) is not None


def run(operation: CudnnOperation, arrays: Sequence[Array]) -> None:
    """Runs an operation for which `can` is True, on inputs and outputs."""
    xp = xp_of(arrays[0])
    context = _device_and_thread(xp)
    graph, handle = _graph(operation, *context), _handle(*context)
    assert graph is not None, "run() needs an operation that can() has accepted"
    library().set_stream(handle=handle, stream=xp.cuda.get_current_stream().ptr)
    workspace = xp.empty(max(graph.workspace, 1), "uint8")
    places = [a.data.ptr for a in arrays]
    graph.graph.execute(places, workspace.data.ptr, handle=handle, tensor_uids=graph.uids)


def _device_and_thread(xp: Any) -> tuple[int, int]:
    """Returns device and thread: threads must not share a cuDNN handle."""
    return int(xp.cuda.runtime.getDevice()), get_ident()


@lru_cache(maxsize=64)
def _handle(device: int, thread: int) -> Any:
    return library().create_handle()


@lru_cache(maxsize=1024)
def _graph(operation: CudnnOperation, device: int, thread: int) -> CudnnGraph | None:
    """Builds and caches the graph of an operation; None if cuDNN has no engine for it."""
    try:
        return build(operation, handle=_handle(device, thread))
    except library().cudnnGraphNotSupportedError:
        return None
    except (RuntimeError, ValueError) as error:  # cuDNN cannot describe it
        warnings.warn(f"cuDNN refuses {operation.label}: {error}", stacklevel=2)
        return None


def build(operation: CudnnOperation, **device: Any) -> CudnnGraph:
    """Builds the graph of an operation, for the device of a cuDNN handle or for given device
    properties.

    Raises cudnnGraphNotSupportedError if there is no engine.
    """
    lib = library()
    note, heuristic, total = lib.numerical_note, lib.heur_mode, lib.data_type.FLOAT
    graph = lib.pygraph(
        io_data_type=type_of(operation.dtype),
        intermediate_data_type=total,
        compute_data_type=total,
        **device,
    )
    tensors = operation.tensors(graph)
    uids = tuple(range(1, len(tensors) + 1))
    for tensor, uid in zip(tensors, uids, strict=True):
        tensor.set_uid(uid)
    unwanted = [note.NONDETERMINISTIC, note.REDUCED_PRECISION_REDUCTION]
    if operation.dtype == "float32" and not operation.tf32:
        unwanted += [note.TENSOR_CORE, note.DOWN_CONVERT_INPUTS]
    graph.validate()
    graph.build_operation_graph()
    graph.create_execution_plans([heuristic.A, heuristic.FALLBACK])
    graph.deselect_numeric_notes(unwanted)
    graph.check_support()
    graph.build_plans()
    return CudnnGraph(graph, uids, graph.get_workspace_size())


def type_of(dtype: str) -> Any:
    """Returns cuDNN's constant for a dtype such as "float16"."""
    return getattr(library().data_type, TYPES[dtype])


def as_output(tensor: Any, dim: Sequence[int], stride: Sequence[int], dtype: str) -> Any:
    """Marks a tensor as output of an operation, with these sizes and strides."""
    named = tensor.set_output(True).set_data_type(type_of(dtype))
    return named.set_dim([*dim]).set_stride([*stride])


# ---- convolutions

TensorSizes = tuple[int, int, int, int]  # (n, h, w, c)
Ends = tuple[int, int]  # along the rows and along the columns


class Operand(NamedTuple):
    """A convolution's input: its name in cuDNN, and its field of sizes."""

    name: str
    sizes: str


class CudnnOp(NamedTuple):
    """cuDNN's method of a convolution: its inputs, and its output's sizes."""

    operation: str
    inputs: tuple[Operand, Operand]
    output: str


FORWARD = CudnnOp("conv_fprop", (Operand("image", "x"), Operand("weight", "w")), "y")
DATA = CudnnOp("conv_dgrad", (Operand("loss", "y"), Operand("filter", "w")), "x")
WEIGHTS = CudnnOp("conv_wgrad", (Operand("image", "x"), Operand("loss", "y")), "w")


class Convolution(NamedTuple):
    """A convolution for cuDNN: the operation, and what its graph depends on."""

    op: CudnnOp
    x: TensorSizes
    w: TensorSizes
    y: TensorSizes
    before: Ends
    after: Ends
    stride: Ends
    dilation: Ends
    dtype: str
    tf32: bool = False

    @property
    def label(self) -> str:
        return "a convolution, which im2col computes instead"

    def doing(self, op: CudnnOp) -> "Convolution":
        """Returns another operation of this convolution, such as a gradient."""
        return self._replace(op=op)

    def tensors(self, graph: Any) -> list[Any]:
        """Adds the operation to a graph; returns its two inputs and its output."""
        dtype = type_of(self.dtype)
        inputs = {
            name: graph.tensor(name=name, data_type=dtype, **dims(getattr(self, sizes)))
            for name, sizes in self.op.inputs
        }
        operation: Callable[..., Any] = getattr(graph, self.op.operation)
        output = operation(
            **inputs,
            pre_padding=list(self.before),
            post_padding=list(self.after),
            stride=list(self.stride),
            dilation=list(self.dilation),
        )
        written = as_output(output, **dims(getattr(self, self.op.output)), dtype=self.dtype)
        return [*inputs.values(), written]


def dims(sizes: TensorSizes) -> dict[str, list[int]]:
    """Returns the arguments `dim` and `stride` with which a tensor of cuDNN is made. `sizes` are
    (n, h, w, c), and channels are last in memory; both results list the axes in cuDNN's order, (n,
    c, h, w)."""
    n, h, w, c = sizes
    return {"dim": [n, c, h, w], "stride": [h * w * c, 1, w * c, c]}


def convolution(
    x: Array, w: Array, windows: Sequence[Any], sizes: tuple[int, int], groups: int
) -> Convolution | None:
    """Returns the description of the convolution of x (N, H, W, C) by w (kh, kw, C / groups, O) to
    outputs of the height and width `sizes`; None if cuDNN is not installed or cannot compute it.

    `windows` (rows, columns) have the stride, padding and dilation along each axis.
    """
    kh, kw, C, O = w.shape
    fits = x.dtype.name in TYPES and x.size and O and C * groups == x.shape[3]
    if library() is None or not fits or min(window.after for window in windows) < 0:
        return None

    def along(name: str) -> Ends:
        rows, columns = (getattr(window, name) for window in windows)
        return rows, columns

    return Convolution(
        FORWARD,
        *(x.shape, (O, kh, kw, C), (x.shape[0], *sizes, O)),
        *(along("before"), along("after"), along("stride"), along("dilation")),
        *(x.dtype.name, allows_tf32(xp_of(x))),
    )
