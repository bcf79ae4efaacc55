"""Attention: softmax(scale q k^T + mask) v, some rows of scores at a time.

    N  samples      T  queries      D  numbers of a query and a key
    K  key heads    S  keys         E  numbers of a value
    G  query heads of each key head

    q (N, K, G, T, D)    k (N, K, S, D)    v (N, K, S, E)    y (N, K, G, T, E)

The scores of a block of queries with all keys that they see are in cache from the first product to
the second one. The backward pass computes them again, so memory is linear in T and S. Which queries
make a block depends on T and S alone: cutting samples or heads among ranks changes no bit.
"""

from collections.abc import Callable, Iterator
from typing import NamedTuple

from nnmpi.backend import Array, of, xp_of
from nnmpi.kernels import progress_hook
from nnmpi.kernels.softmax import softmax_gradient_loop, softmax_loop

FEWEST_ROWS = 64
"""Queries of a block, if there are so many: products of fewer rows are slow."""

MOST_ROWS = 64
"""Queries of a block of causal attention: their scores with later keys are computed in vain."""

Keep = Callable[["Block"], Array]
"""What the probabilities of a block are multiplied by in dropout."""

KeepOf = Callable[[Array, Array], Keep]
"""The same of queries and keys at these positions of whole sequences."""


class Block(NamedTuple):
    """Some samples and key heads, and some queries with the keys that they see, the first ones."""

    samples: slice
    heads: slice
    queries: slice
    keys: slice


class Scores(NamedTuple):
    """How scores are made of products, and probabilities of scores.

    mask: broadcast to (N, K, G, T, S): bool, true where a query sees a key, or added to the scores
    causal: whether query i sees keys 0 to i only
    keep: what probabilities are multiplied by, for each block
    """

    scale: float
    mask: Array | None = None
    causal: bool = False
    keep: Keep | None = None


def blocks(q: Array, k: Array, how: Scores) -> Iterator[Block]:
    """All blocks of which a key is seen, those of a sample and a head in the order of queries."""
    (N, K, G, T, _), S = q.shape, k.shape[2]
    room = of(q).chunk_bytes // (4 * q.itemsize)  # scores, their gradients, and what BLAS packs
    rows = max(FEWEST_ROWS, min(T, room // (4 * max(S, 1))))
    if how.causal and of(q).is_host:
        rows = min(rows, MOST_ROWS)
    heads = min(K, max(1, room // (G * rows * max(S, 1))))
    samples = max(1, room // (K * G * rows * max(S, 1))) if heads == K else 1
    for n in range(0, N, samples):
        for h in range(0, K, heads):
            for t in range(0, T, rows):
                last = min(t + rows, T)
                seen = min(S, last) if how.causal else S
                if seen:
                    yield Block(
                        slice(n, min(n + samples, N)),
                        slice(h, min(h + heads, K)),
                        slice(t, last),
                        slice(0, seen),
                    )


def attention(q: Array, k: Array, v: Array, how: Scores, y: Array) -> None:
    """Writes y."""
    progress = progress_hook.get()
    if not k.shape[2]:
        y[...] = 0  # queries that see no key
    for block in blocks(q, k, how):
        samples, heads, queries, keys = block
        p = _probabilities(q, k, how, block)
        if how.keep is not None:
            p *= how.keep(block)
        y[samples, heads, :, queries] = xp_of(q).matmul(p, v[samples, heads, None, keys])
        progress()


def attention_gradients(
    q: Array,
    k: Array,
    v: Array,
    how: Scores,
    dy: Array,
    dq: Array | None,
    dk: Array | None,
    dv: Array | None,
) -> None:
    """Writes the gradients that are not None, from that of y."""
    xp, progress = xp_of(q), progress_hook.get()
    for d in (dq, dk, dv):
        if d is not None:
            d[...] = 0
    for block in blocks(q, k, how):
        samples, heads, queries, keys = block
        p = _probabilities(q, k, how, block)
        g = dy[samples, heads, :, queries]
        kept = None if how.keep is None else how.keep(block)
        if dv is not None:
            dropped = p if kept is None else p * kept
            dv[samples, heads, keys] += over_group(dropped, g)
        if dq is None and dk is None:
            continue
        dp = xp.matmul(g, v[samples, heads, None, keys].swapaxes(-1, -2))
        if kept is not None:
            dp *= kept
        ds = xp.empty_like(p)
        softmax_gradient_loop(dp, p, ds, -1)
        if dq is not None:
            product = xp.matmul(ds, k[samples, heads, None, keys])
            xp.multiply(product, how.scale, out=dq[samples, heads, :, queries])
        if dk is not None:
            dk[samples, heads, keys] += over_group(ds, q[samples, heads, :, queries] * how.scale)
        progress()


def over_group(a: Array, b: Array) -> Array:
    """a^T b, (n, h, keys, D), of a (n, h, G, rows, keys) and b (n, h, G, rows, D)."""
    product = xp_of(a).matmul(a.swapaxes(-1, -2), b)
    return product[:, :, 0] if product.shape[2] == 1 else product.sum(axis=2)


def scores(q: Array, k: Array, how: Scores, block: Block) -> Array:
    """The scores of a block, (n, h, G, rows, keys), without the mask."""
    samples, heads, queries, keys = block
    rows = q[samples, heads, :, queries] * how.scale
    s: Array = xp_of(q).matmul(rows, k[samples, heads, None, keys].swapaxes(-1, -2))
    if how.causal:
        _hide_later(s, queries.start)
    return s


def _probabilities(q: Array, k: Array, how: Scores, block: Block) -> Array:
    """softmax of the scores of a block, (n, h, G, rows, keys)."""
    xp, s = xp_of(q), scores(q, k, how, block)
    samples, heads, queries, keys = block
    seen = None
    if how.mask is not None:
        part = how.mask[samples, heads, :, queries, keys]
        seen = part if part.dtype.kind == "b" else part > -xp.inf
        s = xp.where(part, s, -xp.inf) if part.dtype.kind == "b" else s + part
        s = xp.maximum(s, xp.finfo(s.dtype).min)  # rows that see nothing have a softmax, too
    p = xp.empty_like(s)
    softmax_loop(s, p, -1)
    if seen is not None:
        p *= seen
    return p


def _hide_later(s: Array, first: int) -> None:
    """Hides from each query the keys behind its position, `first` and up."""
    xp = xp_of(s)
    rows, keys = s.shape[-2:]
    begin = min(first + 1, keys)  # keys before are seen by all
    later = xp.arange(begin, keys)[None, :] > first + xp.arange(rows)[:, None]
    s[..., begin:] += xp.where(later, -xp.inf, 0).astype(s.dtype)
