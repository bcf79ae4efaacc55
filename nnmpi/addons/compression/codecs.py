"""CODECS: compression of gradients for --compress. The values that a step does not send, the
residual, are kept on the rank and added to the next gradient.

    topk      the largest entries of each tensor, with their indices
    sign      a bit for each entry, and the mean absolute value of each tensor
    powersgd  factors of each matrix M: P = M Q, summed and made orthonormal; Q = M^T P, summed
    int8      blocks of 8 bits, with scales (`blocks.py`)

Tensors are compressed one by one: neither buckets nor pipelines change the result, and ranks along
tp with copies of a tensor compute the same result.

A codec gets this rank's gradient + residual, and overwrites it by the values that it has not sent:
the next residual. Summed over ranks, the values that were sent plus the residuals equal the inputs.
(Stich et al. 2018; Karimireddy et al. 2019; Vogels et al. 2019.)
"""

from collections.abc import Callable, Generator, Mapping, Sequence
from itertools import accumulate, pairwise
from math import prod
from typing import Any, NamedTuple

import numpy as np

from nnmpi.addons.compression.blocks import PACKINGS, summed
from nnmpi.addons.compression.compressed import (
    BLOCK,
    Shape,
    as_matrix,
    blocks_of,
    is_factored,
    top_count,
)
from nnmpi.addons.compression.exchange import Phases
from nnmpi.arrays.backend import Array, xp_of
from nnmpi.arrays.kernels.precision import cast, cast_loop
from nnmpi.nn.parameter import Parameter
from nnmpi.parallel.wire import Transfer, Wire


def matrix_of(p: Parameter) -> Shape:
    """Returns the shape of a parameter's matrix, by its axes in memory."""
    return as_matrix([p.shape[axis] for axis in p.memory_axes])


class CodecInput(NamedTuple):
    """The gradients of a bucket that a codec compresses and sums over ranks by `wire`.

    row        a flat array: gradient + residual of this rank; finally the next residual
    shapes     the tensors' shapes as matrices, which follow each other in `row`
    rooms      for each tensor, the most elements that it has on any rank along tp
    dtype      the type of the gradients
    algorithm  the all-reduce of sums that are not compressed
    factors    of PowerSGD: the transposed factors Q of the last step, in one flat array; each
               begins at the index at which its matrix begins in `row`
    """

    row: Array
    shapes: Sequence[Shape]
    rooms: Sequence[int]
    dtype: Any
    wire: Wire
    algorithm: str
    factors: Array | None = None

    @property
    def parts(self) -> list[slice]:
        """The slice of each tensor in the flat array `row`."""
        ends = accumulate(map(prod, self.shapes), initial=0)
        return [slice(lo, hi) for lo, hi in pairwise(ends)]


class Codec(NamedTuple):
    """A compression method for gradients.

    sum          a function (bucket, number) that sums the gradients of a bucket over ranks;
                 `number` is the one after the codec's name in --compress. It is a generator: it
                 yields each transfer that it has started by `bucket.wire` (`start`, an all-reduce
                 in place, or `start_all_gather`), is resumed when that is complete, and returns the
                 sum. At its end `bucket.row` has the values that were not sent. It may use
                 `gathered` to gather arrays
    has_factors  whether it needs factors of the last step, which are equal on all ranks
    """

    sum: Callable[[CodecInput, float], Phases]
    has_factors: bool = False


def _topk(bucket: CodecInput, fraction: float) -> Phases:
    row, xp = bucket.row, xp_of(bucket.row)
    picks = list[Array]()
    for part, shape in zip(bucket.parts, bucket.shapes, strict=True):
        first = prod(shape) - top_count(shape, fraction)
        order = xp.argpartition(abs(row[part]), first)
        picks.append(order[first:].astype(np.int32) + np.int32(part.start))
    places = xp.concatenate(picks)
    values = cast(row[places], bucket.dtype)
    row[places] -= cast(values, row.dtype)
    total = xp.zeros_like(row)
    for terms, at in (yield from gathered((values, places), bucket.wire)):
        total[at] += cast(terms, row.dtype)
    return total


def _sign(bucket: CodecInput, _: float) -> Phases:
    row, xp = bucket.row, xp_of(bucket.row)
    scales = xp.stack([abs(row[part]).mean() for part in bucket.parts]).astype(np.float32)

    def signed(bits: Array, scales: Array) -> Array:
        signs = xp.unpackbits(bits)[: row.size].astype(row.dtype)
        signs *= 2  # not `where`: it takes five times as long, as no branch can be predicted
        signs -= 1
        for part, scale in zip(bucket.parts, scales.astype(row.dtype), strict=True):
            signs[part] *= scale
        return signs

    bits = xp.packbits(row >= 0)
    row -= signed(bits, scales)
    total = xp.zeros_like(row)
    for of_rank in (yield from gathered((bits, scales), bucket.wire)):
        total += signed(*of_rank)
    return total


def _powersgd(bucket: CodecInput, rank: float) -> Phases:
    row, xp, r, factors = bucket.row, xp_of(bucket.row), int(rank), bucket.factors
    assert factors is not None
    parts = [*zip(bucket.parts, bucket.shapes, strict=True)]
    plain = [part for part, shape in parts if not is_factored(shape, r)]
    pairs = [(p, shape) for p, shape in parts if is_factored(shape, r)]
    ms = [row[part].reshape(shape) for part, shape in pairs]
    qs = [factors[p.start : p.start + r * n].reshape(r, n) for p, (_, n) in pairs]  # transposed
    terms = [*(row[part] for part in plain), *(q @ m.T for q, m in zip(qs, ms, strict=True))]
    yield from _summed(terms, bucket)
    sums, ps = terms[: len(plain)], terms[len(plain) :]  # transposed, too
    for p in ps:
        orthonormalise(p)
    news = [p @ m for p, m in zip(ps, ms, strict=True)]
    for p, q, m in zip(ps, news, ms, strict=True):
        m -= p.T @ q
    yield from _summed(news, bucket)
    total = xp.empty_like(row)
    for part, values in zip(plain, sums, strict=True):
        total[part], row[part] = values, 0
    for (part, shape), p, q, old in zip(pairs, ps, news, qs, strict=True):
        total[part].reshape(shape)[...] = p.T @ q
        # a factor of zeros, from gradients of zeros, would stay so for ever
        old[...] = xp.where(abs(q).max(axis=1, keepdims=True) > 0, q, old)
    return total


def _int8(bucket: CodecInput, _: float) -> Phases:
    """Sums the gradients of a bucket in int8 blocks; no block spans two tensors.

    Each tensor begins at the same block on all ranks along tp. So if these ranks have copies of a
    tensor, a block of it is summed by ranks with the same coordinate along dp, and all copies are
    rounded to the same values.
    """
    row, xp = bucket.row, xp_of(bucket.row)
    firsts = [BLOCK * k for k in accumulate(map(blocks_of, bucket.rooms), initial=0)]
    padded = xp.zeros(firsts[-1], row.dtype)
    places = [slice(at, at + prod(shape)) for at, shape in zip(firsts, bucket.shapes, strict=False)]
    pairs = [*zip(bucket.parts, places, strict=True)]
    for part, place in pairs:
        padded[place] = row[part]
    sums = yield from summed(padded, bucket.wire, PACKINGS["int8"], keeps=True)
    for part, place in pairs:
        row[part] = padded[place]
    return xp.concatenate([sums[place] for place in places])


CODECS: Mapping[str, Codec] = {
    "topk": Codec(_topk),
    "sign": Codec(_sign),
    "powersgd": Codec(_powersgd, has_factors=True),
    "int8": Codec(_int8),
}
"""The codecs by name."""


def added_up(codec: Codec, number: float, bucket: CodecInput, gradients: Sequence[Array]) -> Phases:
    """A generator that sums the flat arrays `gradients` of a bucket over ranks by a codec, in
    place; `bucket.row` has this rank's residuals, and gets the next ones."""
    row = bucket.row
    for part, gradient in zip(bucket.parts, gradients, strict=True):
        row[part] += cast(gradient, row.dtype)
    total = yield from codec.sum(bucket, number)
    for part, gradient in zip(bucket.parts, gradients, strict=True):
        cast_loop(total[part], gradient)
    return total


def orthonormalise(rows: Array) -> None:
    """Makes the rows of a matrix orthonormal, by Gram-Schmidt; a row of zeros stays zero. Each row
    is projected twice: if it depends on rows above it, rounding errors of the first pass are not
    orthogonal."""
    xp = xp_of(rows)
    for i, row in enumerate(rows):
        for _ in range(2):
            row -= (rows[:i] @ row) @ rows[:i]
            length = xp.sqrt((row * row).sum())
            row /= xp.where(length > 0, length, 1)


def gathered(arrays: Sequence[Array], wire: Wire) -> Generator[Transfer, None, list[list[Array]]]:
    """A generator that all-gathers a list of arrays, of the same lengths and types on all ranks; it
    returns the list of each rank."""
    xp = xp_of(arrays[0])
    here = xp.concatenate([array.view(np.uint8) for array in arrays])
    everywhere = xp.empty((wire.size, here.size), np.uint8)
    everywhere[wire.rank] = here
    yield wire.start_all_gather(everywhere.reshape(-1))
    ends = [*pairwise(accumulate((array.nbytes for array in arrays), initial=0))]
    # copied, because a part may begin at an address that its type does not allow
    return [
        [
            xp.array(row[lo:hi]).view(array.dtype)
            for array, (lo, hi) in zip(arrays, ends, strict=True)
        ]
        for row in everywhere
    ]


def _summed(arrays: list[Array], bucket: CodecInput) -> Generator[Transfer, None, None]:
    """A generator that sums arrays in one all-reduce, and replaces each by a view of its sum."""
    if not arrays:
        return
    row = xp_of(arrays[0]).concatenate([array.reshape(-1) for array in arrays])
    yield bucket.wire.start(row, bucket.algorithm)
    at = 0
    for k, array in enumerate(arrays):
        arrays[k] = row[at : at + array.size].reshape(array.shape)
        at += array.size
