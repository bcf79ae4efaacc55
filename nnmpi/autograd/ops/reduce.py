"""Reductions."""

from nnmpi.backend import Array, xp_of
from nnmpi.kernels.result import Result

Axis = int | tuple[int, ...] | None


def _with_axes(g: Array, a: Array, axis: Axis, keepdims: bool) -> Array:
    """g with the axes that a reduction of `a` has removed, at length 1."""
    if keepdims or axis is None:
        return g if keepdims else g.reshape((1,) * a.ndim)
    axes = {k % a.ndim for k in (axis if isinstance(axis, tuple) else (axis,))}
    return g.reshape(tuple(1 if k in axes else n for k, n in enumerate(a.shape)))


def _existing(axis: Axis, a: Array) -> Axis:
    """The axes of a; of a single number, 0 and -1 mean none, as in PyTorch."""
    return () if a.ndim == 0 and axis in (0, -1, (0,), (-1,)) else axis


def sum(a: Array, *, axis: Axis = None, keepdims: bool = False) -> Result:
    """The sum over `axis`."""
    xp, axis = xp_of(a), _existing(axis, a)
    return Result(
        a.sum(axis=axis, keepdims=keepdims),
        (lambda g, out: xp.broadcast_to(_with_axes(g, a, axis, keepdims), a.shape),),
    )


def mean(a: Array, *, axis: Axis = None, keepdims: bool = False) -> Result:
    """The mean over `axis`."""
    xp, axis = xp_of(a), _existing(axis, a)
    y = a.mean(axis=axis, keepdims=keepdims)
    share = y.size / a.size if a.size else 0.0
    return Result(
        y,
        (lambda g, out: xp.broadcast_to(_with_axes(g, a, axis, keepdims) * share, a.shape),),
    )


def _extreme(name: str, a: Array, axis: Axis, keepdims: bool) -> Result:
    """The largest or smallest element; equal ones share the gradient, as in PyTorch's amax."""
    xp, axis = xp_of(a), _existing(axis, a)
    y = getattr(xp, name)(a, axis=axis, keepdims=keepdims)

    def vjp(g: Array, out: Array | None) -> Array:
        hit = (a == _with_axes(y, a, axis, keepdims)).astype(a.dtype)
        return hit * (_with_axes(g, a, axis, keepdims) / hit.sum(axis=axis, keepdims=True))

    return Result(y, (vjp,))


def max(a: Array, *, axis: Axis = None, keepdims: bool = False) -> Result:
    """The largest element over `axis`."""
    return _extreme("amax", a, axis, keepdims)


def min(a: Array, *, axis: Axis = None, keepdims: bool = False) -> Result:
    """The smallest element over `axis`."""
    return _extreme("amin", a, axis, keepdims)
