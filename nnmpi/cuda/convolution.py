"""Convolution by cuDNN on arrays of CuPy, channels last in memory.

forward   y = conv(x, w)        x (N, H, W, C), w (O, kh, kw, C / groups), y (N, h, w, O)
data      dx from dy, w
weights   dw from x, dy
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from nnmpi.backend import Array, allows_tf32, xp_of
from nnmpi.cuda import cudnn

TensorSizes = tuple[int, int, int, int]  # of a tensor, channels last
Ends = tuple[int, int]  # along the rows and along the columns


class Operand(NamedTuple):
    """An argument of a graph: its name in cuDNN, and the field of the Spec with its sizes."""

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


class Spec(NamedTuple):
    """An operation of a convolution, with the sizes and options on which its graph depends."""

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
    def instead(self) -> str:
        return "a convolution, im2col takes it"

    def tensors(self, graph: Any) -> list[Any]:
        """Add the operation to a graph; return its two inputs and its output."""
        dtype = cudnn.type_of(self.dtype)
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
        written = cudnn.as_output(output, **dims(getattr(self, self.op.output)), dtype=self.dtype)
        return [*inputs.values(), written]


def dims(sizes: TensorSizes) -> dict[str, list[int]]:
    """Sizes (n, h, w, c), channels last in memory, as cuDNN names them: (n, c, h, w)."""
    n, h, w, c = sizes
    return {"dim": [n, c, h, w], "stride": [h * w * c, 1, w * c, c]}


def spec_of(
    x: Array, w: Array, windows: Sequence[Any], sizes: tuple[int, int], groups: int
) -> Spec | None:
    """The convolution of x (N, H, W, C) by w (kh, kw, C / groups, O) to images of `sizes`, or None.

    None: cuDNN does not do it, or is not there.
    """
    kh, kw, C, O = w.shape
    fits = x.dtype.name in cudnn.TYPES and x.size and O and C * groups == x.shape[3]
    if cudnn.library() is None or not fits or min(window.after for window in windows) < 0:
        return None

    def along(name: str) -> Ends:
        rows, columns = (getattr(window, name) for window in windows)
        return rows, columns

    return Spec(
        FORWARD,
        *(x.shape, (O, kh, kw, C), (x.shape[0], *sizes, O)),
        *(along("before"), along("after"), along("stride"), along("dilation")),
        *(x.dtype.name, allows_tf32(xp_of(x))),
    )


def can(op: CudnnOp, spec: Spec, xp: Any) -> bool:
    """Tell whether cuDNN has an engine for an operation."""
    return cudnn.can(spec._replace(op=op), xp)


def run(op: CudnnOp, spec: Spec, inputs: Sequence[Array], output: Array) -> None:
    """Write the output, from contiguous arrays in the order of `op`."""
    aligned = [a if a.data.ptr % cudnn.ALIGNED == 0 else a.copy() for a in inputs]
    cudnn.run(spec._replace(op=op), [*aligned, output])
