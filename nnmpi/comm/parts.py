"""Parts of uneven lengths in reduce-scatters and all-gathers, which have one part a rank."""

import operator
from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import NamedTuple
from zlib import crc32

from nnmpi.collectives.algorithms import ALL_GATHERS, REDUCE_SCATTERS
from nnmpi.collectives.step import Algorithm, bounds

LONGEST_TEXT = 60  # characters


class Half(NamedTuple):
    """One of the two halves of an all-reduce."""

    operation: str
    algorithms: Mapping[str, Algorithm]
    moves_only: bool


REDUCE_SCATTER = Half("reduce_scatter", REDUCE_SCATTERS, False)
ALL_GATHER = Half("all_gather", ALL_GATHERS, True)


def bounds_of(parts: Sequence[int] | None, n: int, size: int, call: str) -> tuple[int, ...]:
    """The first element of each rank's part of n elements, and n; None stands for even parts."""
    if parts is None:
        return bounds(n, size)
    lengths = [operator.index(length) for length in parts]
    if len(lengths) != size:
        raise ValueError(
            f"{call} got {len(lengths)} parts for {size} ranks: pass one length a rank"
        )
    if min(lengths) < 0:
        rank = lengths.index(min(lengths))
        raise ValueError(
            f"{call}: the part of rank {rank} has length {lengths[rank]}: use 0 or more"
        )
    if sum(lengths) != n:
        raise ValueError(f"{call}: the parts sum to {sum(lengths)}, but the array has {n} elements")
    return tuple(accumulate(lengths, initial=0))


def parts_text(parts: Sequence[int]) -> str:
    """Their lengths, for the call log; of many ranks the first ones and a checksum of all."""
    text = "+".join(map(str, parts))
    if len(text) > LONGEST_TEXT:
        text = f"{text[: LONGEST_TEXT // 2]}... (checksum {crc32(text.encode()):08x})"
    return f"parts {text}"
