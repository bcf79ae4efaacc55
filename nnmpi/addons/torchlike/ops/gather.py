"""Ops that read and write elements at the places of an index; a place may occur several times."""

from __future__ import annotations

from typing import Any

from nnmpi.arrays.backend import Array, xp_of
from nnmpi.arrays.kernels import Result
from nnmpi.autograd.ops.shape import add_at


def places(index: Array, axis: int) -> tuple[Any, ...]:
    """The NumPy index of the elements that `index` selects along an axis."""
    xp, ndim = xp_of(index), index.ndim

    def positions(k: int) -> Array:
        return xp.arange(index.shape[k]).reshape([-1 if i == k else 1 for i in range(ndim)])

    return tuple(index if k == axis else positions(k) for k in range(ndim))


def gather(a: Array, index: Array, *, axis: int) -> Result:
    """y[i, j] = a[i, index[i, j]] for axis=1, as torch.gather."""
    xp, a_shape, at = xp_of(a), a.shape, places(index.copy(), axis)

    def vjp(g: Array, out: Array | None) -> Array:
        d = xp.zeros(a_shape, g.dtype)
        add_at(d, at, g)
        return d

    return Result(a[at], (vjp, vjp))


def scatter(a: Array, index: Array, source: Any, *, axis: int, adds: bool = False) -> Result:
    """A copy of `a` in which source[i, j] replaces the element at index[i, j] along an axis or, if
    `adds`, is added to it; `source`, an array or a number, may be larger than the index."""
    y, at, a_shape = a.copy(), places(index.copy(), axis), a.shape
    within = tuple(slice(n) for n in index.shape)
    shape = getattr(source, "shape", ())
    new = source[within] if shape else source
    if adds:
        add_at(y, at, xp_of(a).broadcast_to(xp_of(a).asarray(new, a.dtype), index.shape))
    else:
        y[at] = new

    def of_a(g: Array, out: Array | None) -> Array:
        if adds:
            return g
        d = g.copy()
        d[at] = 0
        return d

    def of_source(g: Array, out: Array | None) -> Array:
        d = xp_of(g).zeros(shape or index.shape, g.dtype)
        d[within] = g[at]
        return d if shape else d.sum()

    return Result(y, (of_a, lambda g, out: xp_of(g).zeros(a_shape), of_source))


def index_add(a: Array, index: Array, source: Array, *, axis: int, alpha: float = 1) -> Result:
    """A copy of `a` in which alpha * source[i] is added to the slice a[index[i]] along an axis."""
    y, at = a.copy(), (slice(None),) * axis + (index.copy(),)
    add_at(y, at, source if alpha == 1 else source * alpha)
    return Result(
        y,
        (
            lambda g, out: g,
            lambda g, out: g,
            lambda g, out: g[at] if alpha == 1 else g[at] * alpha,
        ),
    )
