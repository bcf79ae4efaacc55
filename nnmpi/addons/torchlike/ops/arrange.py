"""Ops that put elements at other places: reversed, shifted, from and onto a diagonal."""

from __future__ import annotations

from nnmpi.arrays.backend import Array, xp_of
from nnmpi.arrays.kernels import Result


def flip(a: Array, *, axes: tuple[int, ...]) -> Result:
    """The elements in reverse order along axes, as a copy."""
    xp = xp_of(a)
    return Result(xp.flip(a, axes).copy(), (lambda g, out: xp.flip(g, axes),))


def roll(a: Array, *, shifts: tuple[int, ...], axes: tuple[int, ...] | None) -> Result:
    """The elements shifted along axes, cyclically; without axes, along the flattened array."""
    xp, back = xp_of(a), tuple(-n for n in shifts)
    amount = (shifts, back) if axes is not None else (shifts[0], back[0])
    return Result(xp.roll(a, amount[0], axes), (lambda g, out: xp.roll(g, amount[1], axes),))


def diagonal(a: Array, *, offset: int) -> Result:
    """A diagonal of a matrix, `offset` places above the main one, as a copy."""
    xp, a_shape = xp_of(a), a.shape

    def vjp(g: Array, out: Array | None) -> Array:
        d, i = xp.zeros(a_shape, g.dtype), xp.arange(len(g))
        d[i + max(-offset, 0), i + max(offset, 0)] = g
        return d

    return Result(xp.diagonal(a, offset).copy(), (vjp,))


def on_diagonal(a: Array, *, offset: int) -> Result:
    """A matrix of zeros with a vector on a diagonal, `offset` places above the main one."""
    xp, n = xp_of(a), len(a) + abs(offset)
    i = xp.arange(len(a))
    at = i + max(-offset, 0), i + max(offset, 0)
    y = xp.zeros((n, n), a.dtype)
    y[at] = a
    return Result(y, (lambda g, out: g[at],))
