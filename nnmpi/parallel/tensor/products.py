"""Ops of sharded layers: the ordinary op on this rank's channels, with one all-reduce in it.

            x        weight             forward          gradient of x
column      whole    some outputs       no message       all-reduce
row         sharded  some inputs        all-reduce       no message

All-reduces work in the memory of the array that they sum, which nothing else uses. `of` is
`linear`, whose channels are the last `axis`, or `conv1d` or `conv2d`, where they are axis 1 and the
last in memory.
"""

from collections.abc import Callable, Sequence
from typing import Any

from nnmpi.backend import Array, xp_of
from nnmpi.comm import Comm
from nnmpi.kernels import Result, column_sum
from nnmpi.parallel.tensor.ops import all_reduce

Op = Callable[..., Result]


def column(
    x: Array, w: Array, b: Array | None, *, of: Op, comm: Comm, axis: int, **options: Any
) -> Result:
    """Some outputs of an op: w and b are those of these outputs, x is whole on all ranks."""
    result = of(x, w, b, **options)
    of_x, *others = result.vjps

    def summed(g: Any, out: Array | None) -> Array:
        dx = of_x(g, None)
        all_reduce(dx, comm, _memory_order(dx, axis))
        return dx

    return result._replace(vjps=(summed, *others))


def row(
    x: Array,
    w: Array,
    b: Array | None,
    *,
    of: Op,
    comm: Comm,
    axis: int,
    relu: bool = False,
    **options: Any,
) -> Result:
    """An op on some inputs, summed over the ranks, + b, then ReLU if `relu`."""
    result, xp = of(x, w, None, **options), xp_of(x)
    y, plain = result.value, result.prepare
    of_x, of_w, _ = result.vjps
    assert plain is not None
    all_reduce(y, comm, _memory_order(y, axis))
    if b is not None:
        channels_last = xp.moveaxis(y, axis, -1)
        channels_last += b
    if relu:
        xp.maximum(y, 0, out=y)

    def prepare(g: Array, needs: Sequence[bool]) -> tuple[Array, Any]:
        """The gradient before ReLU, and what the vjps of x and w share."""
        if relu:
            g = g * (y > 0)
        return g, plain(g, (*needs[:2], False)) if True in needs[:2] else None

    def of_b(shared: tuple[Array, Any], out: Array | None) -> Array:
        return column_sum(xp.moveaxis(shared[0], axis, -1).reshape(-1, len(w)), out)

    return Result(
        y,
        (lambda shared, out: of_x(shared[1], out), lambda shared, out: of_w(shared[1], out), of_b),
        prepare,
    )


def _memory_order(array: Array, axis: int) -> tuple[int, ...] | None:
    """The order of the axes in memory, as `all_reduce` takes it."""
    return None if axis == -1 else (0, *range(2, array.ndim), 1)


def sharded_lookup(
    w: Array, *, index: Array, start: int, padding: int | None, comm: Comm
) -> Result:
    """Row i of the whole weight for each i of the index: w has its rows from `start` on.

    Row `padding` of the whole weight gets no gradient.
    """
    xp = xp_of(w)
    here = (index >= start) & (index < start + len(w))
    rows = index[here] - start
    y = xp.zeros((*index.shape, w.shape[1]), w.dtype)
    y[here] = w[rows]
    all_reduce(y, comm)

    def vjp(g: Array, out: Array | None) -> Array:
        dw = xp.zeros(w.shape, g.dtype)
        xp.add.at(dw, rows, g[here])
        if padding is not None and start <= padding < start + len(w):
            dw[padding - start] = 0
        return dw

    return Result(y, (vjp,))
