"""Linear layers: x (n, K), w (O, K), b (O) or None, y (n, O)."""

from collections.abc import Sequence

from nnmpi import blas, native
from nnmpi.backend import Array, xp_of
from nnmpi.kernels import column_sum
from nnmpi.kernels.epilogue import bias_relu_loop, relu_gradient
from nnmpi.native.table import kernel

LARGEST = 1 << 18
"""Up to so many products the compiled loops are faster than BLAS everywhere (native/linear.c)."""

OWN_PRODUCTS = ("avx2",)
"""The sets of instructions with which larger ones are too, on one thread, for outputs of any batch
and the gradients of weights for as many rows as MOST_ROWS: `benchmarks/gemm.py` measures it."""

MOST_ROWS = 128


def takes_large(n: int, K: int, O: int) -> bool:
    """Whether the compiled loops compute these products, although they are large."""
    return n * K * O > LARGEST and native.INSTRUCTIONS in OWN_PRODUCTS and blas.threads() == 1


@kernel
def linear_outputs(x: Array, w: Array, b: Array | None, y: Array, relu: bool, large: bool) -> None:
    """y = x @ w.T + b, then ReLU if `relu`."""
    xp = xp_of(x)
    xp.dot(x, w.T, out=y)
    bias_relu_loop(y, b, xp.zeros(len(w), y.dtype) if relu else None)


@kernel
def linear_gradients(
    g: Array,
    x: Array,
    w: Array,
    dx: Array | None,
    dw: Array | None,
    db: Array | None,
    large: bool,
) -> None:
    """The gradients that are not None, from that of y before ReLU, g."""
    xp = xp_of(g)
    if dx is not None:
        xp.dot(g, w, out=dx)
    if dw is not None:
        xp.dot(g.T, x, out=dw)
    if db is not None:
        column_sum(g, db)


@kernel
def mlp_outputs(
    x: Array,
    ws: Sequence[Array],
    bs: Sequence[Array | None],
    ys: Sequence[Array],
    relus: Sequence[bool],
) -> None:
    """The outputs of each layer, which are the next one's inputs."""
    for w, b, y, relu in zip(ws, bs, ys, relus, strict=True):
        linear_outputs(x, w, b, y, relu, False)
        x = y


@kernel
def mlp_gradients(
    g: Array,
    x: Array,
    ws: Sequence[Array],
    ys: Sequence[Array],
    relus: Sequence[bool],
    dx: Array | None,
    dws: Sequence[Array | None],
    dbs: Sequence[Array | None],
) -> None:
    """The gradients that are not None, from that of the last outputs, g."""
    for i in reversed(range(len(ws))):
        g = relu_gradient(g, ys[i]) if relus[i] else g
        inputs = ys[i - 1] if i else x
        before = xp_of(g).empty(inputs.shape, g.dtype) if i else dx
        linear_gradients(g, inputs, ws[i], before, dws[i], dbs[i], False)
        g = before
