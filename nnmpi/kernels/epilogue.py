"""Bias, ReLU and 2x2 max-pooling of one chunk of a convolution, while it is still in cache.

Pooling comes first: max, + b and max(., 0) are monotone, so they commute, and
after pooling there is a quarter of the work. Of the pooled windows

    z[0,0] z[0,1]     columns first:  r[i] = max(z[i,0], z[i,1]),  left[i] = z[i,0] >= z[i,1]
    z[1,0] z[1,1]     then rows:      y    = max(r[0], r[1]),      upper   = r[0] >= r[1]

only the two boolean masks are kept. Of equal elements the first wins, as in PyTorch.
"""

from typing import NamedTuple

from nnmpi.backend import Array, xp_of
from nnmpi.kernels.table import kernel


class Masks(NamedTuple):
    """Which element of each 2x2 window was the largest: `left` (2, S) of each row, `upper` (S)."""

    left: Array
    upper: Array


def pool_windows(z: Array, y: Array) -> Masks:
    """y (S) = the maximum of z (2, 2, S); returns what `unpool_windows` needs."""
    xp = xp_of(z)
    masks = Masks(xp.empty((2, *y.shape), bool), xp.empty(y.shape, bool))
    pool_loop(z, y, *masks)
    return masks


@kernel
def pool_loop(z: Array, y: Array, left: Array, upper: Array) -> None:
    xp = xp_of(z)
    xp.greater_equal(z[:, 0], z[:, 1], out=left)
    r = xp.maximum(z[:, 0], z[:, 1])
    xp.greater_equal(r[0], r[1], out=upper)
    xp.maximum(r[0], r[1], out=y)


def unpool_windows(g: Array, masks: Masks, dz: Array) -> None:
    """Write into dz (2, 2, S) the gradient g (S) at each window's largest element, 0 elsewhere."""
    unpool_loop(g, *masks, dz)


@kernel
def unpool_loop(g: Array, left: Array, upper: Array, dz: Array) -> None:
    xp = xp_of(g)
    gr = xp.empty(left.shape, g.dtype)
    xp.multiply(g, upper, out=gr[0])
    xp.subtract(g, gr[0], out=gr[1])
    xp.multiply(gr, left, out=dz[:, 0])
    xp.subtract(gr, dz[:, 0], out=dz[:, 1])


class RowConstants(NamedTuple):
    """A bias and the zeros of ReLU, each repeated over a row of the image (w * O), or None."""

    bias: Array | None
    zero: Array | None


def rows(b: Array | None, relu: bool, w: int, like: Array) -> RowConstants:
    """The arrays for `bias_relu`: whole rows, since operations on single pixels are slow."""
    xp = xp_of(like)
    zero = xp.zeros(w * like.shape[-1], like.dtype) if relu else None
    return RowConstants(None if b is None else xp.tile(b, w), zero)


def bias_relu(y: Array, r: RowConstants) -> None:
    """y (n, H, W, O) += b, then max(y, 0): in place."""
    bias_relu_loop(y.reshape(y.shape[0] * y.shape[1], -1), *r)


@kernel
def bias_relu_loop(lines: Array, bias: Array | None, zero: Array | None) -> None:
    if bias is not None:
        lines += bias
    if zero is not None:
        xp_of(lines).maximum(lines, zero, out=lines)


def relu_gradient(g: Array, y: Array) -> Array:
    """g where the output y is positive, 0 elsewhere; contiguous like y."""
    out = xp_of(y).empty(y.shape, y.dtype)
    relu_gradient_loop(g, y, out)
    return out


@kernel
def relu_gradient_loop(g: Array, y: Array, out: Array) -> None:
    xp = xp_of(y)
    xp.multiply(g, xp.greater(y, 0), out=out)
