"""What ranks bring to a collective in the tests, and what has to come of it."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from nnmpi.collectives.step import Algorithm, chunk_start, in_rounds, per_rank
from nnmpi.comm import Comm

Array = NDArray[Any]


def lengths(p: int) -> list[int]:
    """Nothing, less than a chunk a rank, uneven chunks, and some more."""
    return sorted({0, 1, p - 1, p, p + 1, 3 * p + 2, 1000})


def part(rank: int, n: int, dtype: Any) -> Array:
    """What a rank brings: small whole numbers, whose sums are exact in every type."""
    return ((np.arange(n) + rank) % 5).astype(dtype)


def total(p: int, n: int, dtype: Any) -> Array:
    parts = [part(r, n, dtype) for r in range(p)]
    return np.logical_or.reduce(parts) if dtype == "bool" else np.add.reduce(parts, dtype=dtype)


def rough(rank: int, n: int, dtype: Any) -> Array:
    """What a rank brings: numbers of all sizes, whose sum depends on the order."""
    rng = np.random.default_rng(rank)
    return (rng.standard_normal(n) * 10.0 ** rng.integers(-2, 3, n)).astype(dtype)


def gathered(comm: Comm, array: Array) -> Array:
    """The bytes of everybody's array, one row a rank."""
    mine = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    rows = np.zeros((comm.size, mine.size), np.uint8)
    rows[comm.rank] = mine
    comm.all_gather(rows)
    return rows


def by_hand(algorithm: Algorithm, parts: list[Array]) -> list[Array]:
    """What every rank ends with, by going through the plan in one process."""
    p, n, c = len(parts), parts[0].size, algorithm.chunks(len(parts))
    held = [x.copy() for x in parts]
    for steps in in_rounds(algorithm.steps(np.arange(p), p)):
        before = [x.copy() for x in held]
        for r, s in (row for step in steps for row in enumerate(per_rank(step, p))):
            for piece in (piece for message in s.receives(c) for piece in message):
                range_ = slice(*(chunk_start(n, c, i) for i in piece))
                arrives = before[s.source][range_]
                held[r][range_] = held[r][range_] + arrives if s.reduce else arrives
    return held
