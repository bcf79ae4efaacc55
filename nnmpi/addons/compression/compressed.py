"""The exact messages and bytes that each codec for compressed gradients sends."""

from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate
from math import prod
from operator import mul
from typing import NamedTuple, TypeAlias

from nnmpi.addons.compression.options import compression

BLOCK = 256
"""Elements of a block; each block is compressed independently."""

WIDTHS: Mapping[str, int] = {"bfloat16": 2 * BLOCK, "int8": BLOCK + 4}
"""The bytes of a compressed block by type; an int8 block has a float32 scale."""

Shape: TypeAlias = tuple[int, int]
"""Rows and columns of a tensor that is compressed as a matrix."""


class Compressed(NamedTuple):
    """The messages and bytes that a rank sends for one bucket of gradients that a codec has
    compressed, averaged over ranks; collectives are taken to be rings."""

    messages: int
    nbytes: float


def as_matrix(shape: Sequence[int]) -> Shape:
    """Returns the shape of the matrix as which PowerSGD compresses a tensor: the axes, in memory
    order, in two groups so that rows + columns, and with them the factors, are smallest. A vector
    is one row."""
    size, rows = prod(shape), [*accumulate(shape[:-1], mul)]
    return min(((m, size // m) for m in rows or [1]), key=sum)


def top_count(shape: Shape, fraction: float) -> int:
    """Returns how many entries topk sends of a tensor, at least 1."""
    n = prod(shape)
    return min(n, max(1, round(fraction * n)))


def blocks_of(n: int) -> int:
    """Returns how many blocks of BLOCK elements cover n elements."""
    return -(-n // BLOCK)


def is_factored(shape: Shape, rank: int) -> bool:
    """Returns True if PowerSGD's two factors of matrix rank `rank` are smaller than the matrix."""
    return rank * sum(shape) < prod(shape)


def _topk(shapes: Sequence[Shape], fraction: float, itemsize: int, p: int) -> Compressed:
    entries = sum(top_count(shape, fraction) for shape in shapes)
    return Compressed(p - 1, (p - 1) * entries * (4 + itemsize))


def _sign(shapes: Sequence[Shape], _: float, itemsize: int, p: int) -> Compressed:
    bits = sum(map(prod, shapes))
    return Compressed(p - 1, (p - 1) * (-(-bits // 8) + 4 * len(shapes)))


def _powersgd(shapes: Sequence[Shape], rank: float, itemsize: int, p: int) -> Compressed:
    r = int(rank)
    factored = [shape for shape in shapes if is_factored(shape, r)]
    plain = sum(map(prod, shapes)) - sum(map(prod, factored))
    numbers = plain + sum(r * sum(shape) for shape in factored)
    nbytes = 2 * (p - 1) / p * numbers * max(itemsize, 4)
    return Compressed(2 * (p - 1) * (1 + bool(factored)), nbytes)


def _int8(shapes: Sequence[Shape], _: float, itemsize: int, p: int) -> Compressed:
    blocks = sum(blocks_of(prod(shape)) for shape in shapes)
    return Compressed(2 * (p - 1), 2 * (p - 1) / p * blocks * WIDTHS["int8"])


BYTES_OF: Mapping[str, Callable[[Sequence[Shape], float, int, int], Compressed]] = {
    "topk": _topk,
    "sign": _sign,
    "powersgd": _powersgd,
    "int8": _int8,
}
"""By codec, traffic of (shapes in a bucket, number after its name, bytes of an element, ranks)."""


def sent(
    spec: str, shapes: Sequence[Shape], itemsize: int, ranks: int
) -> tuple[str, Compressed | None]:
    """Returns the name of the codec in `spec`, a value of `--compress`, and what a rank sends with
    it for a bucket of gradients of these shapes; None for a user's."""
    name, number = compression(spec)
    traffic = BYTES_OF.get(name)
    return name, traffic(shapes, number, itemsize, ranks) if traffic else None
