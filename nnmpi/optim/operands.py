"""Operands of one update, in the pieces that an `_update` takes which knows no 16 bits."""

from collections.abc import Iterator

from nnmpi.arrays import backend
from nnmpi.arrays.kernels.precision import cast, cast_loop, merge_loop
from nnmpi.nn.store import Operands


def in_blocks(x: Operands) -> Iterator[Operands]:
    """The update of masters as one of float32 alone, a block at a time, or all of x where it is
    that already. Values are merged before, and rounded when the next block is asked for."""
    if x.grads.dtype == x.values.dtype and x.mixed.is_empty:
        yield x
        return
    n = len(x.values)
    most = min(n, backend.of(x.values).chunk_bytes // 64)
    for i in range(0, n, most):
        block = x.part(slice(i, min(i + most, n)))
        grads, values = cast(block.grads, block.values.dtype), block.mixed.values
        if block.mixed.factor != 1:
            grads = grads * block.mixed.factor
        if values is not None:
            merge_loop(block.values, values)
        yield Operands(block.values, grads, block.sums, block.t)
        if values is not None:
            cast_loop(block.values, values)
