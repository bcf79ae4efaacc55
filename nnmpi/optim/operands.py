"""Splits the operands of an update into blocks for optimizers that know nothing of 16-bit
training."""

from collections.abc import Iterator

from nnmpi.arrays import backend
from nnmpi.arrays.kernels.precision import cast, cast_loop, merge_loop
from nnmpi.nn.store import Operands


def in_blocks(x: Operands, is_whole: bool = False) -> Iterator[Operands]:
    """Yields the operands of an update as float32 blocks with unscaled gradients, for a plain
    `_update`.

    Where nothing has 16 bits, that is x itself. Else 16-bit values are merged into the masters
    before a block is yielded, and the new masters are rounded to them when the next block is asked
    for. With `is_whole` there is one block.
    """
    if x.grads.dtype == x.values.dtype and x.mixed.is_empty:
        yield x
        return
    n = len(x.values)
    block_size = n if is_whole else min(n, backend.of(x.values).chunk_bytes // 64)
    for i in range(0, n, block_size):
        block = x.part(slice(i, min(i + block_size, n)))
        grads, values = cast(block.grads, block.values.dtype), block.mixed.values
        if block.mixed.factor != 1:
            grads = grads * block.mixed.factor
        if values is not None:
            merge_loop(block.values, values)
        yield Operands(block.values, grads, block.sums, block.t)
        if values is not None:
            cast_loop(block.values, values)
