"""Laws of the ops between ranks of tensor parallelism, on any Comm."""

import numpy as np

from nnmpi.autograd import Tensor
from nnmpi.collectives.step import chunk_start
from nnmpi.comm import Comm
from nnmpi.parallel.tensor import ops


def even(n: int, size: int) -> tuple[int, ...]:
    return tuple(chunk_start(n, size, r) for r in range(size + 1))


def uneven(n: int, size: int) -> tuple[int, ...]:
    """The first rank has most of the channels."""
    return (0, *(n - size + r for r in range(1, size)), n)


def _random(shape: tuple[int, ...], seed: int) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape)


def copy_sums_gradients(comm: Comm) -> None:
    x = Tensor(_random((3, 5), 0), requires_grad=True)
    y = ops.copy(x, comm)
    assert y.array is x.array
    y.backward(np.full((3, 5), comm.rank + 1.0))
    assert (x.grad_array == comm.size * (comm.size + 1) / 2).all()


def copy_leaves_the_gradient_above_as_it_is(comm: Comm) -> None:
    x = Tensor(_random((3, 5), 0), requires_grad=True)
    g = np.full((3, 5), comm.rank + 1.0)
    ops.copy(x, comm).backward(g)
    assert (g == comm.rank + 1).all()


def reduce_sums_values(comm: Comm) -> None:
    x = Tensor(_random((4, 3), comm.rank), requires_grad=True)
    before = x.array.copy()
    y = ops.reduce(x, comm)
    want = sum(_random((4, 3), r) for r in range(comm.size))
    np.testing.assert_allclose(y.array, want, rtol=1e-12)
    assert (x.array == before).all()
    g = _random((4, 3), 9)
    y.backward(g)
    assert (x.grad_array == g).all()


def images_are_summed_in_channels_last_order(comm: Comm) -> None:
    """A rank whose array has another order in memory must not add other elements."""
    x = _random((2, 3, 4, 5), comm.rank)
    memory = x if comm.rank % 2 else np.ascontiguousarray(x.transpose(0, 2, 3, 1))
    x = memory if comm.rank % 2 else memory.transpose(0, 3, 1, 2)
    y = ops.reduce(Tensor(x), comm)
    want = sum(_random((2, 3, 4, 5), r) for r in range(comm.size))
    np.testing.assert_allclose(y.array, want, rtol=1e-12)


def gather_and_scatter_are_inverse(comm: Comm) -> None:
    for shape, axis in (((3, 7), 1), ((3, 7), 0), ((2, 7, 4, 3), 1), ((2, 4, 7), -1), ((0, 7), 1)):
        for bounds in (even(shape[axis], comm.size), uneven(shape[axis], comm.size)):
            whole = _random(shape, 3)
            part = ops.scatter(Tensor(whole), comm, bounds, axis)
            assert part.shape[axis] == bounds[comm.rank + 1] - bounds[comm.rank]
            np.testing.assert_array_equal(ops.gather(part, comm, bounds, axis).array, whole)
