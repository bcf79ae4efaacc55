"""Sums arrays over ranks by messages that are packed block by block: as bfloat16, or as int8 with a
scale.

    rank 0   blocks ─ pack ─► [ 0 | 1 | 2 ] ──┐ parts r of all ranks       [ 0 | 1 | 2 ] ─ unpack
    rank 1   blocks ─ pack ─► [ 0 | 1 | 2 ] ──┼─► rank r: unpack, add, ──► all-gather
    rank 2   blocks ─ pack ─► [ 0 | 1 | 2 ] ──┘   pack the sum

Each rank sends 2 (p - 1) / p of the packed bytes. Terms are added in the type of the array, in the
order of ranks, and every rank unpacks the same bytes, so all have the same bits. The sum is rounded
once, whereas an all-reduce of packed values would round after each addition, in an order that
depends on its algorithm.
"""

from collections.abc import Callable, Iterator, Mapping
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from nnmpi.addons.compression.compressed import BLOCK, WIDTHS, blocks_of
from nnmpi.addons.compression.exchange import Exchange, Phases
from nnmpi.arrays import dtypes
from nnmpi.arrays.backend import Array, xp_of
from nnmpi.arrays.kernels.precision import cast
from nnmpi.collectives.step import bounds
from nnmpi.parallel.wire import Transfer, Transfers, Wire

BLOCKS_AT_ONCE = 128
"""The number of blocks that are packed at a time."""

LEAST_SCALE = 1e-30
"""An int8 block with a smaller scale is sent as zeros: the inverse of the scale would overflow."""


class Packing(NamedTuple):
    """A format in which blocks of BLOCK elements are sent: the bytes of a packed block, a function
    from floats (blocks, BLOCK) to bytes (blocks, width), and one from these bytes to floats of a
    dtype."""

    width: int
    pack: Callable[[Array], Array]
    unpack: Callable[[Array, Any], Array]


def _pack_bfloat16(x: Array) -> Array:
    return cast(x, dtypes.named("bfloat16")).view(np.uint8)


def _unpack_bfloat16(packed: Array, dtype: Any) -> Array:
    return cast(packed.view(dtypes.named("bfloat16")), dtype)


def _pack_int8(x: Array) -> Array:
    """Packs rows of floats: a float32 scale (maximum / 127), and int8 multiples."""
    xp = xp_of(x)
    scales = (abs(x).max(axis=1, keepdims=True) / 127).astype(np.float32)
    packed = xp.empty((len(x), WIDTHS["int8"]), np.uint8)
    with np.errstate(divide="ignore", invalid="ignore"):  # NaN stays in the scale
        factors = xp.where(scales > LEAST_SCALE, 1 / scales.astype(x.dtype), 0)
        packed[:, 4:] = xp.rint(x * factors).astype(np.int8).view(np.uint8)
    packed[:, :4] = scales.view(np.uint8)
    return packed


def _unpack_int8(packed: Array, dtype: Any) -> Array:
    scales = xp_of(packed).ascontiguousarray(packed[:, :4]).view(np.float32)
    return packed[:, 4:].view(np.int8) * scales.astype(dtype)


PACKINGS: Mapping[str, Packing] = {
    "bfloat16": Packing(WIDTHS["bfloat16"], _pack_bfloat16, _unpack_bfloat16),
    "int8": Packing(WIDTHS["int8"], _pack_int8, _unpack_int8),
}
"""The formats of blocks, by name."""


def start_mean(row: Array, wire: Wire, form: str) -> Transfer:
    """Starts to replace the flat array `row` by its mean over the ranks of `wire`, in messages of
    the form `form` of PACKINGS; all ranks get the same bits. Until the transfer that it returns is
    complete, the array must not be touched, and no other collective of the wire may be started."""

    def mean() -> Phases:
        total = yield from summed(row, wire, PACKINGS[form])
        total /= wire.size
        row[...] = total
        return row

    return Exchange(mean(), alone=True)


def summed(row: Array, wire: Wire, packing: Packing, keeps: bool = False) -> Phases:
    """A generator that returns the sum of the flat array `row` over the ranks of `wire`, sent in
    the format `packing`.

    With `keeps`, `row`, which must consist of full blocks, is overwritten with the rounding errors
    of this rank, to be added to the next gradient. They arise when it packs its own values, and
    when it packs the sums of the blocks that it adds up for all ranks.
    """
    xp, p, dtype, blocks = xp_of(row), wire.size, row.dtype, _blocks(row)
    assert not keeps or blocks.size == row.size
    packed = xp.empty((len(blocks), packing.width), np.uint8)
    for piece in _pieces(blocks, slice(0, len(blocks))):
        packed[piece] = packing.pack(blocks[piece])
        if keeps:
            blocks[piece] -= packing.unpack(packed[piece], dtype)
    ends = bounds(len(blocks), p)
    here = slice(ends[wire.rank], ends[wire.rank + 1])
    terms = xp.empty((p, here.stop - here.start, packing.width), np.uint8)
    terms[wire.rank] = packed[here]
    yield _scattered(packed, terms, ends, wire)
    for piece in _pieces(blocks, here):
        of_ranks = terms[:, piece.start - here.start : piece.stop - here.start]
        total = packing.unpack(of_ranks[0], dtype)
        for r in range(1, p):
            total += packing.unpack(of_ranks[r], dtype)
        packed[piece] = packing.pack(total)
        if keeps:
            total -= packing.unpack(packed[piece], dtype)
            blocks[piece] += total
    parts = [(b - a) * packing.width for a, b in pairwise(ends)]
    yield wire.start_all_gather(packed.reshape(-1), parts=parts)
    totals = xp.empty_like(blocks)
    for piece in _pieces(blocks, slice(0, len(blocks))):
        totals[piece] = packing.unpack(packed[piece], dtype)
    return totals.reshape(-1)[: row.size]


def _pieces(blocks: Array, within: slice) -> Iterator[slice]:
    """Yields slices of `within`, on the host short enough for a cache."""
    step = BLOCKS_AT_ONCE if type(blocks) is np.ndarray else max(len(blocks), 1)
    for start in range(within.start, within.stop, step):
        yield slice(start, min(start + step, within.stop))


def _scattered(packed: Array, terms: Array, ends: Any, wire: Wire) -> Transfer:
    """Starts a reduce-scatter of packed blocks: sends rank r its part, blocks ends[r] to
    ends[r + 1] - 1, and receives this rank's part from r into terms[r]."""
    others = [(wire.rank + d) % wire.size for d in range(1, wire.size)]
    works = [wire.irecv(terms[r], r) for r in reversed(others) if terms[r].size]
    works += [wire.isend(packed[ends[r] : ends[r + 1]], r) for r in others if ends[r] < ends[r + 1]]
    return Transfers(works)


def _blocks(row: Array) -> Array:
    """Returns a flat array as rows of BLOCK elements, the last one padded with zeros."""
    n = blocks_of(row.size)
    if row.size < n * BLOCK:
        row = xp_of(row).concatenate([row, xp_of(row).zeros(n * BLOCK - row.size, row.dtype)])
    return row.reshape(n, BLOCK)
