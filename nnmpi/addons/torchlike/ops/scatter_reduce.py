"""The op `scatter_reduce`: sums, means, products and extremes of the elements for each place."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from nnmpi.addons.torchlike.ops.gather import places
from nnmpi.arrays.backend import Array, xp_of
from nnmpi.arrays.dtypes import is_float
from nnmpi.arrays.kernels import Result
from nnmpi.arrays.kernels.precision import widened
from nnmpi.autograd.ops.shape import add_at

Places = tuple[Array, ...]


def _add(y: Array, at: Places, source: Array, axis: int) -> None:
    add_at(y, at, source)


def _multiply(y: Array, at: Places, source: Array, axis: int) -> None:
    """Multiplies slice by slice, in each of which a place occurs only once."""
    for i in range(source.shape[axis]):
        here = (slice(None),) * axis + (slice(i, i + 1),)
        to = tuple(k[here if k.shape[axis] > 1 else ()] for k in at)
        y[to] = y[to] * source[here]


def _largest(y: Array, at: Places, source: Array, axis: int) -> None:
    xp_of(y).maximum.at(y, at, source)


def _smallest(y: Array, at: Places, source: Array, axis: int) -> None:
    xp_of(y).minimum.at(y, at, source)


WRITES: Mapping[str, Callable[[Array, Places, Array, int], None]] = {
    "sum": _add,
    "mean": _add,
    "prod": _multiply,
    "amax": _largest,
    "amin": _smallest,
}
"""How elements are written, by the argument `reduce`."""


def _start(reduce: str, dtype: Any) -> Any:
    """The value of a place before the first element: one that changes nothing."""
    if reduce in ("sum", "mean", "prod"):
        return 1 if reduce == "prod" else 0
    limits = (-np.inf, np.inf) if is_float(dtype) else (np.iinfo(dtype).min, np.iinfo(dtype).max)
    return limits[reduce == "amin"]


@widened
def scatter_reduce(
    a: Array, index: Array, source: Array, *, axis: int, reduce: str, include_self: bool
) -> Result:
    """A copy of `a` in which the place index[i, j] along an axis holds the sum, mean, product or
    extreme of all source[i, j] for it and, with `include_self`, of its own element."""
    xp, at, within = xp_of(a), places(index.copy(), axis), tuple(slice(n) for n in index.shape)
    source_shape, s = source.shape, source[within]

    def reduced(a: Array, s: Array) -> Array:
        y = a.copy()
        if not include_self:
            y[at] = _start(reduce, a.dtype)
        WRITES[reduce](y, at, s, axis)
        return y

    y, counts = reduced(a, s), _counts(a, at, index, include_self) if reduce == "mean" else 1
    if reduce == "mean":
        y = y / counts if is_float(y.dtype) else y // counts
    total = reduced(a, s) if reduce == "prod" else y

    def of_both(g: Array) -> tuple[Array, Array]:
        if reduce in ("sum", "mean"):
            return g / counts, (g / counts)[at]
        if reduce == "prod":
            return _of_factors(g, a, s, total, at, reduced)
        hit, hits = (a == y).astype(g.dtype), (s == y[at]).astype(g.dtype)
        all_hits = hit.copy()
        add_at(all_hits, at, hits)
        share = g / xp.where(all_hits == 0, 1, all_hits)
        return hit * share, hits * share[at]

    def of_a(g: Array, out: Array | None) -> Array:
        d = of_both(g)[0].astype(g.dtype)
        if not include_self:
            d[at] = 0
        return d

    def of_source(g: Array, out: Array | None) -> Array:
        d = xp.zeros(source_shape, g.dtype)
        d[within] = of_both(g)[1]
        return d

    return Result(y, (of_a, lambda g, out: xp.zeros(index.shape), of_source))


def _counts(a: Array, at: Places, index: Array, include_self: bool) -> Array:
    """How many elements each place has, at least 1."""
    xp = xp_of(a)
    counts = xp.ones(a.shape, a.dtype)
    if not include_self:
        counts[at] = 0
    add_at(counts, at, xp.ones(index.shape, a.dtype))
    return counts


def _of_factors(
    g: Array, a: Array, s: Array, y: Array, at: Places, reduced: Callable[[Array, Array], Array]
) -> tuple[Array, Array]:
    """The gradients of the factors of a product: each is that of the others, also beside a 0."""
    xp = xp_of(a)
    others = xp.where(a == 0, 1, a)
    zeros = xp.zeros(a.shape, g.dtype)
    add_at(zeros, at, (s == 0).astype(g.dtype))
    is_only = (s == 0) & (zeros[at] == 1)
    without = reduced(a, xp.where(is_only, 1, s))
    of_source = xp.where(is_only, (g * without)[at], (g * y)[at] / xp.where(s == 0, 1, s))
    return g * reduced(others, s) / others, of_source
