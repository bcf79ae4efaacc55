"""Matrix products, also of stacks of matrices, and linear layers.

x (n, K)    w (O, K)    b (O) or None    y (n, O)
"""

import sys
from collections.abc import Sequence
from functools import partial
from typing import Any

from nnmpi.arrays import blas, native
from nnmpi.arrays.backend import Array, of, xp_of
from nnmpi.arrays.kernels import column_sum
from nnmpi.arrays.kernels.epilogue import bias_relu_loop, relu_gradient, zeros
from nnmpi.arrays.native.table import InOut, Out, kernel


@kernel
def products_loop(A: Array, B: Array, C: InOut, adds: bool) -> None:
    """Writes C[g] = A[g] @ B[g] for each matrix g of a stack, or adds it to C if `adds`; C may be
    float32 where A and B have 16 bits."""
    if adds:
        C += xp_of(A).matmul(A, B)
    else:
        xp_of(A).matmul(A, B, out=C)


def dot(a: Array, b: Array, out: Array) -> None:
    """Writes out = a @ b for two matrices; products of 16-bit floats are added up in float32."""
    if of(a).is_host:
        xp_of(a).dot(a, b, out=out)
    else:
        products_loop(a, b, out, False)


def matmul(a: Array, b: Array, dtype: Any = None) -> Array:
    """Computes a @ b of vectors, matrices or stacks of them, in `dtype`, by default that of a. On a
    device products of 16-bit factors are added up in float32."""
    xp = xp_of(a)
    if of(a).is_host or a.dtype != b.dtype:
        product: Array = xp.matmul(a, b)
        return product if dtype is None else product.astype(dtype, copy=False)
    if b.ndim == 1:
        return matmul(a, b[:, None], dtype)[..., 0]
    if a.ndim == 1:
        return matmul(a[None], b, dtype)[..., 0, :]
    lead = xp.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    c = xp.empty((*lead, a.shape[-2], b.shape[-1]), dtype or a.dtype)
    products_loop(a, b, c, False)
    return c


LARGEST = 1 << 18
"""Up to so many multiplications compiled loops beat BLAS on every processor."""

AVX512 = {"dw": range(1, sys.maxsize), "dx": range(64, sys.maxsize)}
OWN_PRODUCTS = {
    "avx2": {"dw": range(1, 129), "dx": range(0)},
    **dict.fromkeys(("avx512", "avx512bf16", "amx"), AVX512),
}
"""Instruction sets whose compiled loops are faster than OpenBLAS on one thread for larger products
too: for outputs, and for gradients with these numbers of rows (`benchmarks/gemm.py`)."""


def outputs(x: Array, w: Array, b: Array | None, y: Array, relu: bool) -> None:
    """Writes y = x @ w.T + b, with ReLU if `relu`, by the fastest code for the size."""
    linear_outputs(x, w, b, y, relu, prefers_compiled(len(y), w.shape[1], len(w)))


def gradients(
    g: Array, w: Array, x: Array | None, dx: Array | None, dw: Array | None, db: Array | None
) -> None:
    """Writes the gradients dx, dw and db of a linear layer y = x @ w.T + b, from the gradient g of
    y (before ReLU), each by the fastest code for its size.

    Each of dx, dw and db may be None: not needed. Only dw needs x, which may be None without it.
    """
    if prefers_compiled(len(g), *w.shape):
        rows = OWN_PRODUCTS[native.INSTRUCTIONS]
        if dx is not None and len(g) in rows["dx"]:
            linear_gradients(g, w, None, dx, None, None, True)
            dx = None
        if dw is not None and len(g) in rows["dw"]:
            linear_gradients(g, w, x, None, dw, None, True)
            dw = None
    linear_gradients(g, w, x, dx, dw, db, False)


def prefers_compiled(n: int, K: int, O: int) -> bool:
    """True if the compiled kernel is faster than BLAS at (n, K) by (K, O) on this processor,
    although such products are large. Products of a matrix and a vector are left to BLAS."""
    return (
        n * K * O > LARGEST
        and min(n, K, O) > 1
        and native.INSTRUCTIONS in OWN_PRODUCTS
        and blas.threads() == 1
        and blas.core() != "unknown"
    )


@partial(kernel, narrow=True)
def linear_outputs(x: Array, w: Array, b: Array | None, y: Out, relu: bool, large: bool) -> None:
    """Writes y = x w^T + b, and ReLU of it if `relu`; b may be None. The compiled kernel leaves
    large products to BLAS, unless `large`."""
    dot(x, w.T, y)
    bias_relu_loop(y, b, zeros(len(w), y) if relu else None)


def add_outputs(x: Array, w: Array, y: Array, scratch: Array, large: bool) -> None:
    """Adds x w^T to y; `scratch` has the shape of y."""
    if of(y).is_host:
        linear_outputs(x, w, None, scratch, False, large)
        y += scratch
    else:
        products_loop(x, w.T, y, True)


@partial(kernel, narrow=True)
def linear_gradients(
    g: Array, w: Array, x: Array | None, dx: Out | None, dw: Out | None, db: Out | None, large: bool
) -> None:
    """Writes the gradients dx, dw and db (None: not needed), from the gradient g of the outputs
    before ReLU. The compiled kernel leaves large products to BLAS, unless `large`."""
    if dx is not None:
        dot(g, w, dx)
    if dw is not None:
        dot(g.T, x, dw)
    if db is not None:
        column_sum(g, db)


@partial(kernel, composed=True)
def mlp_outputs(
    x: Array,
    ws: Sequence[Array],
    bs: Sequence[Array | None],
    ys: Sequence[Out],
    relus: Sequence[bool],
) -> None:
    """Writes the outputs `ys` of all layers of an MLP on x: layer i has the weight ws[i], the bias
    bs[i] or None, and ReLU if relus[i]. The outputs of a layer are the inputs of the next one."""
    for w, b, y, relu in zip(ws, bs, ys, relus, strict=True):
        outputs(x, w, b, y, relu)
        x = y


@partial(kernel, composed=True)
def mlp_gradients(
    g: Array,
    x: Array,
    ws: Sequence[Array],
    ys: Sequence[Array],
    relus: Sequence[bool],
    dx: Out | None,
    dws: Sequence[Out | None],
    dbs: Sequence[Out | None],
) -> None:
    """Writes the gradients of an MLP, from the gradient g of its last outputs: dx of its input, dws
    and dbs of its weights and biases; None: not needed. `ws` are the weights and `ys` the outputs
    of all layers; relus[i] is True if layer i ends in ReLU."""
    for i in reversed(range(len(ws))):
        g = relu_gradient(g, ys[i]) if relus[i] else g
        inputs = ys[i - 1] if i else x
        d_inputs = xp_of(g).empty(inputs.shape, g.dtype) if i else dx
        gradients(g, ws[i], inputs, d_inputs, dws[i], dbs[i])
        g = d_inputs
