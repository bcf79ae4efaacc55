"""Kernels on rows that integers select: the mask of dropout, and the gradient of an embedding."""

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
    """Writes dropout's mask (n, m): `factor` where an element is kept, 0 where it is dropped.

    An element is kept if 32 random bits, a hash of key, row and index, are at least `least`.

        index (m)    rows (n)    k0..k3  the words of a `keyed.Key`
    """
    bits = keyed.bits(keyed.Key(k0, k1, k2, k3), index[None], rows[:, None])
    xp_of(mask).multiply(bits >= least, mask.dtype.type(factor), out=mask)


@partial(kernel, narrow=True)
def embedding_gradient_loop(g: Array, index: Array, dw: InOut) -> None:
    """Adds rows of g to dw[index], one after the other, so that repeated indices add up."""
    add_rows(dw, index, g)


def add_rows(to: Array, index: Array, g: Array) -> None:
    """Adds row i of g to to[index[i]], always with the same bits."""
    xp = xp_of(to)
    if isinstance(to, np.ndarray):
        xp.add.at(to, index, g)
        return
    index = index.reshape(-1).astype(np.int64, copy=False) % max(len(to), 1)
    order = xp.argsort(index, kind="stable")
    add_sorted_loop(to, index[order], order, g.reshape(-1, *to.shape[1:]))


@partial(kernel, composed=True)
def add_sorted_loop(to: InOut, rows: Array, order: Array, g: Array) -> None:
    """Adds g[order[i]] to to[rows[i]], for sorted `rows`; always the same bits."""
    xp, dtype = xp_of(to), types_of(to.dtype).sums
    total = xp.zeros((len(to), *to.shape[1:]), dtype)
    g = g[order].astype(dtype)
    last = xp.ones(rows.shape, bool)
    last[:-1] = rows[1:] != rows[:-1]
    shape = (-1, *[1] * (to.ndim - 1))
    # add.at adds in any order on a device: each row gets one sum and zeros, so no bit changes
    xp.add.at(total, rows, xp.where(last.reshape(shape), _sums_so_far(g, rows, shape), 0))
    to += total.astype(to.dtype)


def _sums_so_far(g: Array, rows: Array, shape: tuple[int, ...]) -> Array:
    """Overwrites g by its prefix sums within each run of equal values in the sorted `rows`, and
    returns it; `shape`, such as (-1, 1), makes a vector broadcast to g."""
    xp, step = xp_of(g), 1
    while step < len(rows):
        same = (rows[step:] == rows[:-step]).reshape(shape)
        shifted = xp.where(same, g[:-step], 0)
        g[step:] += shifted
        step *= 2
    return g
