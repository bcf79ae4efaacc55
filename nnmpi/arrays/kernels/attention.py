"""Attention: softmax(scale q k^T + mask) v, some rows of scores at a time.

    N  samples      T  queries      D  numbers of a query and a key
    K  key heads    S  keys         E  numbers of a value
    G  query heads of each key head

    q (N, K, G, T, D)    k (N, K, S, D)    v (N, K, S, E)    y (N, K, G, T, E)

    lse (N, K, G, T)    the logarithm of the sum of e^score of each query; -inf if there are no keys

Scores, lse and sums have the type of sums of q, k, v, y and their gradients, and what is written is
rounded once. On a device cuDNN computes where it can (`cuda/sdpa.py`), which has no
scores in memory; else factors of products are rounded to the type of q, as they are there.

The scores of some queries with all keys that they see are in cache from the first product to the
second one. The backward pass computes them again, from lse, so memory is linear in T and S. Which
queries are taken together depends on T and S alone: cutting samples or heads among ranks changes
no bit. Attention to some keys and to others is that to all, by `join`.
"""

from collections.abc import Callable, Iterator
from functools import partial
from typing import NamedTuple

from nnmpi.arrays.backend import Array, of, xp_of
from nnmpi.arrays.cuda import sdpa
from nnmpi.arrays.dtypes import types_of
from nnmpi.arrays.kernels import progress_hook
from nnmpi.arrays.kernels.linear import matmul
from nnmpi.arrays.kernels.precision import cast, round_loop
from nnmpi.arrays.kernels.softmax import (
    hide_later,
    probabilities_loop,
    scores_gradient_loop,
    softmax_backward,
    softmax_loop,
)
from nnmpi.arrays.meta import is_meta
from nnmpi.arrays.native.table import InOut, Out, kernel

FEWEST_ROWS = 64
"""Queries whose scores are computed at once, if there are so many: fewer make slow products."""

MOST_ROWS = 64
"""The most of them in causal attention: their scores with later keys are computed in vain."""

CALL_ROWS = 256
"""Queries of a tile on the host, if there are so many; a loop takes some of them at a time, and
messages progress between tiles."""

Keep = Callable[["Tile"], Array]
"""The factors of dropout for the probabilities of a tile."""

KeepOf = Callable[[Array, Array], Keep]
"""The factors of dropout for queries and keys at these positions of whole sequences."""


class Tile(NamedTuple):
    """Some samples and key heads, and some queries with the keys that they see, the first ones."""

    samples: slice
    heads: slice
    queries: slice
    keys: slice


class Scores(NamedTuple):
    """How scores are made of products, and probabilities of scores.

    mask: broadcast to (N, K, G, T, S): bool, true where a query sees a key, or added to the scores
    causal: whether query i sees keys 0 to i only
    keep: what probabilities are multiplied by, for each tile
    """

    scale: float
    mask: Array | None = None
    causal: bool = False
    keep: Keep | None = None

    @property
    def is_plain(self) -> bool:
        """Whether probabilities are those of all keys, or of the first ones."""
        return self.mask is None and self.keep is None

    def of(self, tile: Tile) -> tuple[float, int, Array | None, Keep | None]:
        """The arguments of the loops for a tile: scale; first, where query i of the tile sees keys
        0 to first + i, or all keys if it is -1; mask; and keep, of tiles within this one."""
        samples, heads, queries, keys = tile
        mask, keep = self.mask, self.keep
        if mask is not None:
            mask = mask[samples, heads, :, queries, keys]
        if keep is not None:
            keep = partial(_keep_within, keep, tile)
        return self.scale, queries.start if self.causal else -1, mask, keep


def _keep_within(keep: Keep, tile: Tile, part: Tile) -> Array:
    """`keep` of a part of the queries of a tile."""
    start = tile.queries.start
    rows = slice(start + part.queries.start, start + part.queries.stop)
    return keep(tile._replace(queries=rows, keys=part.keys))


def attention(q: Array, k: Array, v: Array, how: Scores, y: Array, lse: Array) -> None:
    """Writes y and lse."""
    progress = progress_hook.get()
    if not k.shape[2]:
        y[...], lse[...] = 0, -xp_of(q).inf
    if how.is_plain and sdpa.attention(q, k, v, how.scale, how.causal, y, lse):
        return
    for tile in _tiles(q, k, how.causal):
        samples, heads, queries, keys = tile
        rows, seen = (samples, heads, slice(None), queries), (samples, heads, keys)
        attention_loop(q[rows], k[seen], v[seen], y[rows], lse[rows], *how.of(tile))
        progress()


def attention_gradients(
    q: Array,
    k: Array,
    v: Array,
    how: Scores,
    y: Array,
    lse: Array,
    dy: Array,
    dq: Array,
    dk: Array,
    dv: Array,
) -> None:
    """Writes dq, dk and dv, from the gradient of y.

    Where y and lse are those of other keys too, these are the parts that go through k and v; not
    with a mask.
    """
    progress, (T, S) = progress_hook.get(), (q.shape[3], k.shape[2])
    for d in (dq, dk, dv) if not T or not S else ():
        d[...] = 0
    arrays, derivatives = (q, k, v, y, lse), (dy, dq, dk, dv)
    if how.is_plain and sdpa.gradients(arrays, how.scale, how.causal, derivatives):
        return
    for tile in _tiles(q, k, how.causal):
        samples, heads, queries, keys = tile
        rows, seen = (samples, heads, slice(None), queries), (samples, heads, keys)
        of_heads = dk[samples, heads], dv[samples, heads]
        if not queries.start:
            sums = [_zeros(d) for d in of_heads]
        of_rows = q[rows], k[seen], v[seen], y[rows], lse[rows], dy[rows], dq[rows]
        attention_gradient_loop(*of_rows, *(d[:, :, keys] for d in sums), *how.of(tile))
        if types_of(dk.dtype).is_mixed and queries.stop == T:
            for total, d in zip(sums, of_heads, strict=True):
                round_loop(total, d)
        progress()


def _zeros(d: Array) -> Array:
    """Where gradients are added up: in d, if it has the type of sums."""
    types = types_of(d.dtype)
    if types.is_mixed:
        return xp_of(d).zeros(d.shape, types.sums)
    d[...] = 0
    return d


def join(y: Array, lse: Array, others: Array, lse_of_others: Array) -> None:
    """Makes y and lse those of their keys and of others, of which there is one at least."""
    xp = xp_of(y)
    both = xp.logaddexp(lse, lse_of_others)
    y *= xp.exp(lse - both)[..., None]
    y += others * xp.exp(lse_of_others - both)[..., None]
    lse[...] = both


@partial(kernel, narrow=True)
def attention_loop(
    q: Array,
    k: Array,
    v: Array,
    y: Out,
    lse: Out,
    scale: float,
    first: int,
    mask: Array | None,
    keep: Keep | None,
) -> None:
    """Writes y and lse of a tile; the options are those of `Scores.of`."""
    xp, progress = xp_of(q), progress_hook.get()
    for part in _parts(q, k, first):
        rows, keys = part.queries, part.keys
        s, seen, later = _scores(q, k, part, scale, first, mask)
        p = xp.empty_like(s)
        probabilities_loop(s, p, lse[..., rows], later)
        if seen is not None:
            p *= seen
        if keep is not None:
            p *= keep(part)
        y[..., rows, :] = matmul(cast(p, q.dtype), v[:, :, None, keys], y.dtype)
        progress()


@partial(kernel, narrow=True)
def attention_gradient_loop(
    q: Array,
    k: Array,
    v: Array,
    y: Array,
    lse: Array,
    dy: Array,
    dq: Out,
    dk: InOut,
    dv: InOut,
    scale: float,
    first: int,
    mask: Array | None,
    keep: Keep | None,
) -> None:
    """Writes dq of a tile, and adds to dk and dv: ds = scale p (dp - sum(dy y))."""
    xp, progress = xp_of(q), progress_hook.get()
    for part in _parts(q, k, first):
        rows, keys = part.queries, part.keys
        s, seen, later = _scores(q, k, part, scale, first, mask)
        g, kept = dy[..., rows, :], None if keep is None else keep(part)
        ds = matmul(g, v[:, :, None, keys].swapaxes(-1, -2), s.dtype)
        if kept is not None:
            ds *= kept
        of_rows, p = (cast(g, s.dtype) * y[..., rows, :]).sum(axis=-1), s
        if seen is None:
            scores_gradient_loop(s, ds, lse[..., rows], of_rows, scale, later)
        else:  # beside large numbers of a mask the logarithm of a sum is rounded away
            p = xp.empty_like(s)
            softmax_loop(s, p, -1)
            p *= seen
            softmax_backward(p, ds, of_rows, scale)
        dv[:, :, keys] += _over_group(p if kept is None else p * kept, g)
        dq[..., rows, :] = matmul(cast(ds, q.dtype), k[:, :, None, keys], dq.dtype)
        dk[:, :, keys] += _over_group(ds, q[..., rows, :])
        progress()


def _tiles(q: Array, k: Array, causal: bool) -> Iterator[Tile]:
    """All tiles, those of a head in the order of queries; none if there are no keys."""
    (N, K, G, T, _), S = q.shape, k.shape[2]
    at_once = _rows(q, S, causal)
    rows = max(at_once, min(T, CALL_ROWS)) if of(q).is_host else at_once
    most = max(1, _room(q) // max(G * at_once * S, 1))
    heads = max(1, min(K, most))
    samples = max(1, most // heads) if heads == K else 1
    for n in range(0, N if S and not is_meta(q) else 0, samples):
        for h in range(0, K, heads):
            for t in range(0, T, rows):
                yield Tile(
                    slice(n, min(n + samples, N)),
                    slice(h, min(h + heads, K)),
                    slice(t, min(t + rows, T)),
                    slice(0, min(S, t + rows) if causal else S),
                )


def _parts(q: Array, k: Array, first: int) -> Iterator[Tile]:
    """The queries of a tile, so many that their scores are in cache, with the keys they see."""
    (n, h, _, T, _), S = q.shape, k.shape[2]
    rows = _rows(q, S, first >= 0)
    for t in range(0, T, rows):
        last = min(t + rows, T)
        seen = min(S, first + last) if first >= 0 else S
        yield Tile(slice(0, n), slice(0, h), slice(t, last), slice(0, seen))


def _rows(q: Array, S: int, causal: bool) -> int:
    """How many queries' scores are computed at once."""
    rows: int = max(FEWEST_ROWS, min(q.shape[3], _room(q) // (4 * max(S, 1))))
    return min(rows, MOST_ROWS) if causal and of(q).is_host else rows


def _room(q: Array) -> int:
    """How many scores, their gradients, and what BLAS packs, are in cache."""
    return of(q).chunk_bytes // (4 * int(types_of(q.dtype).sums.itemsize))


def _over_group(a: Array, b: Array) -> Array:
    """a^T b, (n, h, keys, D), of a (n, h, G, rows, keys) and b (n, h, G, rows, D), in a's type."""
    product = matmul(cast(a, b.dtype).swapaxes(-1, -2), b, a.dtype)
    return product[:, :, 0] if product.shape[2] == 1 else product.sum(axis=2)


def _scores(
    q: Array, k: Array, part: Tile, scale: float, first: int, mask: Array | None
) -> tuple[Array, Array | None, int]:
    """The scores of some queries, (n, h, G, rows, keys), which of them a mask lets through, and
    from where on later keys are to be hidden; -1: they are, or are seen."""
    xp, seen, rows, keys = xp_of(q), None, part.queries, part.keys
    later = first + rows.start if first >= 0 else -1
    s: Array
    columns = k[:, :, None, keys].swapaxes(-1, -2)
    if types_of(q.dtype).is_mixed:  # products with the scale would be rounded
        s = matmul(q[..., rows, :], columns, types_of(q.dtype).sums)
        s *= scale
    else:
        s = matmul(q[..., rows, :] * scale, columns)
    if mask is not None:
        added = mask[..., rows, keys]
        seen = added if added.dtype.kind == "b" else added > -xp.inf
        s = xp.where(added, s, -xp.inf) if added.dtype.kind == "b" else s + added
        s = xp.maximum(s, xp.finfo(s.dtype).min)  # rows that see nothing have a softmax, too
        if later >= 0:
            hide_later(s, later)
        later = -1
    return s, seen, later
