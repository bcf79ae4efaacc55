"""Ops of sharded layers: the ordinary op on this rank's channels, with one all-reduce in it.

            x        weight             forward          gradient of x
column      whole    some outputs       no message       all-reduce
row         sharded  some inputs        all-reduce       no message

All-reduces work in the memory of the array that they sum, which nothing else uses.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from nnmpi.autograd.ops import linear
from nnmpi.backend import Array, xp_of
from nnmpi.comm import Comm
from nnmpi.kernels import Result, Vjp, column_sum
from nnmpi.parallel.tensor.sums import all_reduce

Convolution = Callable[..., Result]
"""`conv1d` or `conv2d` of `autograd/ops/conv.py`."""


def column_linear(x: Array, w: Array, b: Array | None, *, comm: Comm, relu: bool) -> Result:
    """Some columns of x @ w.T + b, then ReLU if `relu`: w and b are those of these columns."""
    return _column(linear.linear(x, w, b, relu=relu), comm)


def column_conv(
    x: Array, w: Array, b: Array | None, *, convolution: Convolution, comm: Comm, **options: Any
) -> Result:
    """Some output channels of a convolution, with its options."""
    return _column(convolution(x, w, b, **options), comm, _channels_last(x))


def _column(result: Result, comm: Comm, order: Sequence[int] | None = None) -> Result:
    """The result of an op whose first argument all ranks have whole: gradients are summed.

    `order` is that of their memory, as in `all_reduce`.
    """
    of_x, *others = result.vjps
    return result._replace(vjps=(_summed(of_x, comm, order), *others))


def _summed(vjp: Vjp, comm: Comm, order: Sequence[int] | None) -> Vjp:
    def total(g: Any, out: Array | None) -> Array:
        dx = vjp(g, None)
        all_reduce(dx, comm, order)
        return dx

    return total


def row_linear(x: Array, w: Array, b: Array | None, *, comm: Comm, relu: bool) -> Result:
    """x @ w.T + b of some columns of x and w, summed over the ranks, then ReLU if `relu`."""
    result = linear.linear(x, w, None)
    y = result.value
    all_reduce(y, comm)
    if b is not None:
        y += b
    if not relu:
        return result
    xp_of(y).maximum(y, 0, out=y)
    plain = result.prepare
    assert plain is not None

    def prepare(g: Array, needs: Sequence[bool]) -> Any:
        return plain(g * (y > 0), needs)

    return result._replace(prepare=prepare)


def _channels_last(array: Array) -> tuple[int, ...]:
    """The memory order of images (N, C, H, W) and of sequences (N, C, L) in convolutions."""
    return (0, *range(2, array.ndim), 1)


class _Shared(NamedTuple):
    """What the gradients of a convolution and of its bias are computed from."""

    g: Array
    of_conv: Any


def row_conv(
    x: Array, w: Array, b: Array | None, *, convolution: Convolution, comm: Comm, **options: Any
) -> Result:
    """A convolution of some input channels, summed over the ranks, + b."""
    result = convolution(x, w, None, **options)
    y = result.value
    all_reduce(y, comm, _channels_last(y))
    if b is not None:
        y += b.reshape(-1, *[1] * (y.ndim - 2))
    of_x, of_w, _ = result.vjps
    plain = result.prepare
    assert plain is not None

    def prepare(g: Array, needs: Sequence[bool]) -> _Shared:
        return _Shared(g, plain(g, (*needs[:2], False)) if True in needs[:2] else None)

    def of_b(shared: _Shared, out: Array | None) -> Array:
        return column_sum(shared.g.transpose(_channels_last(y)).reshape(-1, len(w)))

    return Result(
        y,
        (
            lambda shared, out: of_x(shared.of_conv, out),
            lambda shared, out: of_w(shared.of_conv, out),
            of_b,
        ),
        prepare,
    )


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
