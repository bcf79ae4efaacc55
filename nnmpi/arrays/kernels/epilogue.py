"""Bias, ReLU and 2x2 max-pooling of one chunk of a convolution, while it is still in cache.

Pooling comes first: max, + b and max(., 0) are monotone, so they commute, and after pooling there
is a quarter of the work. Of the pooled windows

    z[0,0] z[0,1]     columns first:  r[i] = max(z[i,0], z[i,1])      largest:  0 1
    z[1,0] z[1,1]     then rows:      y    = max(r[0], r[1])                    2 3

only the place of the largest element is kept, a byte each. Of equal ones the first wins.
"""

from functools import cache
from typing import Any, NamedTuple

import numpy as np

from nnmpi.arrays.backend import Array, Backend, of, xp_of
from nnmpi.arrays.kernels import column_sum
from nnmpi.arrays.kernels.precision import cast_loop, float32_on_host
from nnmpi.arrays.native.table import InOut, Out, kernel


def empty_places(y: Array) -> Array:
    """Allocates the positions (0 to 3) of maxima in 2x2 windows; y are the maxima."""
    return xp_of(y).empty(y.shape, "uint8")


@kernel
def pool_loop(z: Array, y: Out, largest: Out) -> None:
    """Writes the maxima y of z (2, 2, S), and their positions for `unpool_loop`."""
    xp = xp_of(z)
    r = xp.maximum(z[:, 0], z[:, 1])
    first, last = xp.logical_not(z[:, 0] >= z[:, 1]).view("uint8")
    largest[...] = xp.where(r[0] >= r[1], first, last + 2)
    xp.maximum(r[0], r[1], out=y)


@kernel
def unpool_loop(g: Array, largest: Array, dz: Out) -> None:
    """Writes g (S) into dz (2, 2, S) at the largest element of each window, else 0."""
    for place in range(4):
        dz[divmod(place, 2)] = xp_of(g).where(largest == place, g, 0)


class Gradients(NamedTuple):
    """The gradients of a convolution's images, weights and bias; None if not needed."""

    dx: Array
    dw: Array
    db: Array


class RowConstants(NamedTuple):
    """The numbers that `bias_relu` adds and compares with, repeated over a row of the image (w *
    O): the bias, and `zeros` for ReLU; None without."""

    bias: Array | None
    zero: Array | float | None


def row_constants(b: Array | None, relu: bool, w: int, like: Array) -> RowConstants:
    """Makes the bias b, and zeros if `relu`, each repeated on the host over a row of w pixels,
    since NumPy is slow on single pixels. `like` is an array of outputs."""
    xp, w = xp_of(like), w if of(like).is_host else 1
    zero = zeros(w * like.shape[-1], like) if relu else None
    if b is None or w == 1:
        return RowConstants(b, zero)
    row = xp.empty((w, len(b)), b.dtype)  # np.tile takes as long as a small convolution
    row[...] = b
    return RowConstants(row.reshape(-1), zero)


def zeros(width: int, like: Array) -> Array | float:
    """Returns what ReLU compares rows of `width` elements with: zeros on the host, where NumPy is
    faster than with a number, and 0 on a device, where zeros would have to be written first."""
    return xp_of(like).zeros(width, like.dtype) if of(like).is_host else 0.0


def copied(host: np.ndarray, dtype: Any, like: Array) -> Array:
    """Returns a copy of a small array, in a dtype and in the library of `like`. A device keeps it
    for ever: a graph of kernels cannot contain a copy from the host, and reads it each time."""
    on = of(like)
    if on.is_host:
        return on.asarray(host, dtype)
    device = on.xp.cuda.runtime.getDevice()
    return _cached_copy(host.tobytes(), host.dtype.str, host.shape, np.dtype(dtype), on, device)


@cache
def _cached_copy(
    values: bytes, kind: str, shape: tuple[int, ...], dtype: Any, on: Backend, device: int
) -> Array:
    return on.asarray(np.frombuffer(values, kind).reshape(shape), dtype)


def bias_relu(y: Array, r: RowConstants) -> None:
    """Adds the bias to y (n, H, W, O) and takes max(y, 0), in place; None: not that."""
    width = next((len(a) for a in r if isinstance(a, type(y))), y.shape[-1])
    bias_relu_loop(y.reshape(y.size // max(width, 1), width), *r)


@kernel
def bias_relu_loop(lines: InOut, bias: Array | None, zero: Array | float | None) -> None:
    """Adds the bias to each line, and takes the maximum of the result and `zeros`; None: not
    that."""
    if bias is not None:
        lines += bias
    if zero is not None:
        xp_of(lines).maximum(lines, zero, out=lines)


def relu_gradient(g: Array, y: Array) -> Array:
    """Returns g where the output y is positive and 0 elsewhere, in the memory layout of y."""
    out = xp_of(y).empty_like(y)
    relu_gradient_loop(g, y, out)
    return out


@kernel
def relu_gradient_loop(g: Array, y: Array, out: Out) -> None:
    xp = xp_of(y)
    xp.multiply(g, xp.greater(y, 0), out=out)


def outputs(
    z: Array, y: Array, largest: Array | None, rows: RowConstants, covers: tuple[int, int]
) -> None:
    """Writes a convolution's outputs y (n, h, w, O) from the sums z by pooling, bias and ReLU.

    With `largest`, which receives the position of each window's maximum, z begins with two axes for
    the position in a 2x2 pooling window; otherwise z has the axes of images. `covers` is the height
    and width of z after pooling; z may be larger than y, and is then cropped.
    """
    xp, (n, h, w, O) = xp_of(y), y.shape
    is_whole = (h, w) == covers
    pooled = y if is_whole and y.dtype == z.dtype else xp.empty((n, *covers, O), z.dtype)
    if largest is None:
        pooled.reshape(z.shape)[...] = z
    else:
        places = largest if is_whole else empty_places(pooled)
        S = z.shape[2:]
        pool_loop(z, pooled.reshape(S), places.reshape(S))
        if not is_whole:
            largest[...] = places[:, :h, :w]
    cropped = pooled if is_whole else xp.ascontiguousarray(pooled[:, :h, :w])
    bias_relu(cropped, rows)
    if cropped is not y:
        cast_loop(cropped, y)


def masked(g: Array, y: Array | None, db: Array | None) -> Array:
    """Returns the gradient g with zeros where ReLU's output y is 0: that before ReLU, contiguous.

    y is None without ReLU. Adds the column sums to db, the gradient of the bias, unless it is None.
    """
    g = xp_of(g).ascontiguousarray(g) if y is None else relu_gradient(g, y)
    if db is not None:
        db += column_sum(float32_on_host(g.reshape(-1, g.shape[-1])))
    return g


def spread(g: Array, largest: Array | None, dz: Array, covers: tuple[int, int]) -> None:
    """Writes dz, the gradient of a convolution's sums, by the backward pass of 2x2 max-pooling.

    g (n, h, w, O) is the gradient of the pooled sums. It goes to the largest element of each
    window, whose position (0 to 3) is in `largest`; other elements of dz (2, 2, n, h, w, O), which
    begins with the position in a window, get 0. Without pooling `largest` is None, and g is copied
    to dz (n, h, w, O). `covers` are the h and w of dz: where they exceed those of g, because
    `outputs` has cropped, dz gets 0.
    """
    n, h, w, O = g.shape
    if (h, w) != covers:
        g = _grown(g, (n, *covers, O))
        largest = None if largest is None else _grown(largest, g.shape)
    if largest is None:
        dz[...] = g.reshape(dz.shape)
    else:
        S = dz.shape[2:]
        unpool_loop(g.reshape(S), largest.reshape(S), dz)


def _grown(a: Array, shape: tuple[int, ...]) -> Array:
    """Pads a (..., h, w, O) to this shape, with zeros after its last rows and columns."""
    grown = xp_of(a).zeros(shape, a.dtype)
    grown[..., : a.shape[-3], : a.shape[-2], :] = a
    return grown
