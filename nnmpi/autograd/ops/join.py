"""The join of results that were computed independently of each other."""

from collections.abc import Callable, Mapping, Sequence
from functools import reduce
from typing import Any

from nnmpi.arrays.backend import Array, xp_of
from nnmpi.arrays.kernels import Prepare, Result
from nnmpi.autograd.ops.shape import axis_within

SUMS = ("sum", "mean")
"""The ways that add the parts up."""


def _concatenated(parts: Sequence[Array], axis: int) -> Array:
    return xp_of(parts[0]).concatenate(parts, axis=axis_within(axis, parts[0].ndim))


def _stacked(parts: Sequence[Array], axis: int) -> Array:
    return xp_of(parts[0]).stack(parts, axis=axis_within(axis, parts[0].ndim + 1))


PUT_TOGETHER: Mapping[str, Callable[[Sequence[Array], int], Array]] = {
    "concat": _concatenated,
    "stack": _stacked,
}
"""The ways that put the parts side by side, along an axis."""

JOINS = (*SUMS, *PUT_TOGETHER)


def joined(*parts: Array, join: str, axis: int = -1) -> Result:
    """The sum or the mean of the parts, or all of them side by side along an axis."""
    check_shapes([part.shape for part in parts], join, axis)
    if join in PUT_TOGETHER:
        y = PUT_TOGETHER[join](parts, axis)
        shapes = [part.shape for part in parts]
        return Result(y, tuple(part_of_gradient(shapes, join, axis, i) for i in range(len(parts))))
    y = reduce(lambda a, b: a + b, parts[1:], parts[0].copy(order="K"))
    return Result(y, (lambda g, out: g,) * len(parts), divide(y, join, len(parts)))


def divide(y: Array, join: str, n: int) -> Prepare | None:
    """Makes a sum of n parts their mean, if that is asked for, and its gradient that of each."""
    if join == "sum":
        return None
    y /= n
    return lambda g, needs: g / n


def part_of_gradient(
    shapes: Sequence[tuple[int, ...]], join: str, axis: int, i: int
) -> Callable[[Array, Array | None], Array]:
    """The vjp of part i of parts with these shapes that were put side by side."""
    if join == "stack":
        along = axis_within(axis, len(shapes[i]) + 1)
        index: tuple[Any, ...] = ((slice(None),) * along) + (i,)
    else:
        along = axis_within(axis, len(shapes[i]))
        start = sum(shape[along] for shape in shapes[:i])
        index = ((slice(None),) * along) + (slice(start, start + shapes[i][along]),)
    return lambda g, out: g[index]


def check_shapes(shapes: Sequence[tuple[int, ...]], join: str, axis: int) -> None:
    """Raises ValueError unless parts of these shapes can be joined."""
    compared = list(shapes)
    if join == "concat":
        along = axis_within(axis, len(shapes[0]))
        compared = [(*shape[:along], *shape[along + 1 :]) for shape in shapes]
    if len({*compared}) > 1:
        but = f" along all axes but {axis}" if join == "concat" else ""
        raise ValueError(
            f"join {join}: parts of the shapes {', '.join(map(str, shapes))}: they must be equal"
            f"{but}"
        )
