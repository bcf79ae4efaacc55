"""The tiles in which attention is computed: scores of some queries, with all keys that they see,
fit in cache.

Which queries are taken together depends on the numbers T of queries and S of keys alone, so cutting
samples or heads among ranks changes no bit.
"""

from collections.abc import Iterator
from typing import NamedTuple

from nnmpi.arrays.backend import Array, of
from nnmpi.arrays.dtypes import types_of
from nnmpi.arrays.meta import is_meta
from nnmpi.arrays.meta.log import call_log

FEWEST_ROWS = 64
"""The fewest queries at once: with fewer, products are slow."""

MOST_ROWS = 64
"""The most queries at once if causal: scores of later keys are wasted."""

CALL_ROWS = 256
"""The number of queries of a tile on the host.

A loop takes some of them at a time, and messages progress between tiles.
"""


class Tile(NamedTuple):
    """A block of an attention computation: slices of samples, key heads, queries, and the keys,
    from the first one on, that these queries may see."""

    samples: slice
    heads: slice
    queries: slice
    keys: slice


def tiles(q: Array, k: Array, causal: bool) -> Iterator[Tile]:
    """Yields the tiles in which attention is computed, those of a head in the order of queries;
    none if there are no keys."""
    (N, K, G, T, _), S = q.shape, k.shape[2]
    rows_at_once = _rows(q, S, causal)
    rows = max(rows_at_once, min(T, CALL_ROWS)) if of(q).is_host else rows_at_once
    heads_in_cache = max(1, _room(q) // max(G * rows_at_once * S, 1))
    heads = max(1, min(K, heads_in_cache))
    samples = max(1, heads_in_cache // heads) if heads == K else 1
    is_computed = S and not (is_meta(q) and call_log.get() is None)
    for n in range(0, N if is_computed else 0, samples):
        for h in range(0, K, heads):
            for t in range(0, T, rows):
                yield Tile(
                    slice(n, min(n + samples, N)),
                    slice(h, min(h + heads, K)),
                    slice(t, min(t + rows, T)),
                    slice(0, min(S, t + rows) if causal else S),
                )


def parts(q: Array, k: Array, first: int) -> Iterator[Tile]:
    """Splits a tile into parts of fewer queries, whose scores fit in the CPU's cache; each is a
    Tile with the keys that its queries see, 0 to first + i for query i, or all if `first` is -1."""
    (n, h, _, T, _), S = q.shape, k.shape[2]
    rows = _rows(q, S, first >= 0)
    for t in range(0, T, rows):
        last = min(t + rows, T)
        seen = min(S, first + last) if first >= 0 else S
        yield Tile(slice(0, n), slice(0, h), slice(t, last), slice(0, seen))


def _rows(q: Array, S: int, causal: bool) -> int:
    """Returns the number of queries whose scores with all S keys fit in cache at once."""
    rows: int = max(FEWEST_ROWS, min(q.shape[3], _room(q) // (4 * max(S, 1))))
    return min(rows, MOST_ROWS) if causal and of(q).is_host else rows


def _room(q: Array) -> int:
    """Returns the scores that fit in cache with their gradients and BLAS's copies."""
    return of(q).chunk_bytes // (4 * int(types_of(q.dtype).sums.itemsize))
