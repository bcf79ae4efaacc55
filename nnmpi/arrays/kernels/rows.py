"""Rows of matrices by integers: the mask of dropout, the gradient of an embedding."""

from functools import partial

import numpy as np

from nnmpi.arrays import keyed
from nnmpi.arrays.backend import Array, xp_of
from nnmpi.arrays.dtypes import types_of
from nnmpi.arrays.native.table import InOut, Out, kernel


@kernel
def dropout_mask_loop(
    index: Array,
    rows: Array,
    k0: int,
    k1: int,
    k2: int,
    k3: int,
    least: int,
    factor: float,
    mask: Out,
) -> None:
    """mask (n, m) = factor where the bits of index (m) and row (n) are at least `least`, else 0."""
    bits = keyed.bits(keyed.Key(k0, k1, k2, k3), index[None], rows[:, None])
    xp_of(mask).multiply(bits >= least, mask.dtype.type(factor), out=mask)


@partial(kernel, narrow=True)
def embedding_gradient_loop(g: Array, index: Array, dw: InOut) -> None:
    """dw[index] += g, one after the other."""
    add_rows(dw, index, g)


def add_rows(to: Array, index: Array, g: Array) -> None:
    """to[index] += g of rows, with the same bits in each run; on a device in float32 at least."""
    xp = xp_of(to)
    if isinstance(to, np.ndarray):
        xp.add.at(to, index, g)
        return
    index = index.reshape(-1).astype(np.int64, copy=False) % max(len(to), 1)
    order = xp.argsort(index, kind="stable")
    add_sorted_loop(to, index[order], order, g.reshape(-1, *to.shape[1:]))


@partial(kernel, composed=True)
def add_sorted_loop(to: InOut, rows: Array, order: Array, g: Array) -> None:
    """to[rows] += g[order], where equal rows lie behind each other."""
    xp, kind = xp_of(to), types_of(to.dtype).sums
    total = xp.zeros((len(to), *to.shape[1:]), kind)
    g = g[order].astype(kind)
    last = xp.ones(rows.shape, bool)
    last[:-1] = rows[1:] != rows[:-1]
    shape = (-1, *[1] * (to.ndim - 1))
    # a row gets one sum and zeros, whose order changes no bit
    xp.add.at(total, rows, xp.where(last.reshape(shape), _sums_so_far(g, rows, shape), 0))
    to += total.astype(to.dtype)


def _sums_so_far(g: Array, rows: Array, shape: tuple[int, ...]) -> Array:
    """The sum of the gradients g of equal rows, which are sorted, up to each of them."""
    xp, step = xp_of(g), 1
    while step < len(rows):
        same = (rows[step:] == rows[:-step]).reshape(shape)
        shifted = xp.where(same, g[:-step], 0)
        g[step:] += shifted
        step *= 2
    return g
