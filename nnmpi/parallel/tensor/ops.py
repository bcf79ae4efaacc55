"""The four ops between ranks that hold parts of one model, as functions of tensors.

            forward                     backward
copy        x                           all-reduce        x goes into a sharded layer
reduce      all-reduce                  g                 partial sums come out of one
gather      all-gather along an axis    own part          sharded channels become whole
scatter     own part along an axis      all-gather        whole channels become sharded

`copy` and `reduce` are transposes of each other as maps between what all ranks hold, and so are
`gather` and `scatter`. They keep no state; on a Comm of one rank each is the identity.
"""

from nnmpi.autograd import Tensor, apply
from nnmpi.backend import Array, xp_of
from nnmpi.comm import Comm
from nnmpi.kernels import Result
from nnmpi.nn.parameter import Parameter
from nnmpi.parallel.tensor.sums import Bounds, all_gather, all_reduce, memory_order, own_part


def copy(x: Tensor, comm: Comm) -> Tensor:
    """x itself; its gradient is the sum over the ranks, each of which computes with x.

    x has the same values on all ranks.
    """
    order = x.layout if isinstance(x, Parameter) else memory_order(x.ndim)
    return apply(_copy, x, comm=comm, order=order)


def reduce(x: Tensor, comm: Comm) -> Tensor:
    """The sum of x over the ranks; the gradient of the sum is that of each x."""
    return apply(_reduce, x, comm=comm)


def gather(x: Tensor, comm: Comm, bounds: Bounds, axis: int = 1) -> Tensor:
    """The parts of all ranks, side by side along an axis."""
    _check(x, bounds[comm.rank + 1] - bounds[comm.rank], axis, "gather", bounds)
    return apply(_gather, x, comm=comm, bounds=bounds, axis=axis)


def scatter(x: Tensor, comm: Comm, bounds: Bounds, axis: int = 1) -> Tensor:
    """This rank's part of x, which is the same on all ranks, along an axis."""
    _check(x, bounds[-1], axis, "scatter", bounds)
    return apply(_scatter, x, comm=comm, bounds=bounds, axis=axis)


def _check(x: Tensor, size: int, axis: int, name: str, bounds: Bounds) -> None:
    if x.shape[axis] != size:
        raise ValueError(
            f"{name}: input of shape {x.shape}; with bounds {bounds} it must have {size} "
            f"channels along axis {axis} here"
        )


def _copy(x: Array, *, comm: Comm, order: tuple[int, ...]) -> Result:
    def vjp(g: Array, out: Array | None) -> Array:
        total = xp_of(g).empty_like(g) if out is None else out
        total[...] = g
        all_reduce(total, comm, order)
        return total

    return Result(x, (vjp,), is_view=True)


def _reduce(x: Array, *, comm: Comm) -> Result:
    total = x.copy(order="K")
    all_reduce(total, comm)
    return Result(total, (lambda g, out: g,))


def _gather(x: Array, *, comm: Comm, bounds: Bounds, axis: int) -> Result:
    y = all_gather(x, comm, bounds, axis)
    return Result(y, (lambda g, out: own_part(g, comm, bounds, axis),))


def _scatter(x: Array, *, comm: Comm, bounds: Bounds, axis: int) -> Result:
    y = own_part(x, comm, bounds, axis)
    return Result(y, (lambda g, out: all_gather(g, comm, bounds, axis),), is_view=True)
