"""The op that joins the outputs of branches: their sum or mean, or the outputs side by side."""

from collections.abc import Callable, Sequence
from functools import reduce
from typing import Any

from nnmpi.arrays.backend import Array, xp_of
from nnmpi.arrays.kernels import Prepare, Result
from nnmpi.autograd.ops.shape import axis_within

SUMS = ("sum", "mean")
"""The ways to join parts by adding them up."""


PUT_TOGETHER = ("concat", "stack")
"""The ways to join parts side by side, along an axis."""

JOINS = (*SUMS, *PUT_TOGETHER)


def put_together(parts: Sequence[Array], join: str, axis: int) -> Array:
    """Joins arrays along an axis, existing ("concat") or new ("stack")."""
    xp, ndim = xp_of(parts[0]), parts[0].ndim
    if join == "stack":
        return xp.stack(parts, axis=axis_within(axis, ndim + 1))
    return xp.concatenate(parts, axis=axis_within(axis, ndim))


def joined(*parts: Array, join: str, axis: int = -1) -> Result:
    """Sums, averages, concatenates or stacks branches' outputs, by `join`."""
    check_shapes([part.shape for part in parts], join, axis)
    if join in PUT_TOGETHER:
        y = put_together(parts, join, axis)
        shapes = [part.shape for part in parts]
        return Result(y, tuple(part_of_gradient(shapes, join, axis, i) for i in range(len(parts))))
    y = reduce(lambda a, b: a + b, parts[1:], parts[0].copy(order="K"))
    return Result(y, (lambda g, out: g,) * len(parts), divide(y, join, len(parts)))


def divide(y: Array, join: str, n: int) -> Prepare | None:
    """Divides y, the sum of n outputs, in place by n if `join` is "mean"; returns the op's
    `prepare`, which divides the gradient too, or None."""
    if join == "sum":
        return None
    y /= n
    return lambda g, needs: g / n


def part_of_gradient(
    shapes: Sequence[tuple[int, ...]], join: str, axis: int, i: int
) -> Callable[[Array, Array | None], Array]:
    """Makes the vjp of the i-th of arrays of these shapes that were concatenated or stacked: its
    slice of the gradient."""
    if join == "stack":
        along = axis_within(axis, len(shapes[i]) + 1)
        index: tuple[Any, ...] = ((slice(None),) * along) + (i,)
    else:
        along = axis_within(axis, len(shapes[i]))
        start = sum(shape[along] for shape in shapes[:i])
        index = ((slice(None),) * along) + (slice(start, start + shapes[i][along]),)
    return lambda g, out: g[index]


def check_shapes(shapes: Sequence[tuple[int, ...]], join: str, axis: int) -> None:
    """Raises ValueError unless parts of these shapes can be joined by `join`."""
    compared = list(shapes)
    if join == "concat":
        along = axis_within(axis, len(shapes[0]))
        compared = [(*shape[:along], *shape[along + 1 :]) for shape in shapes]
    if len({*compared}) > 1:
        but = f" along all axes but {axis}" if join == "concat" else ""
        raise ValueError(
            f"join {join}: the parts have the shapes {', '.join(map(str, shapes))}, which must be "
            f"equal{but}"
        )
