"""Attention: softmax(scale q k^T + mask) v, some rows of scores at a time.

    N  samples      T  queries      D  numbers of a query and a key
    K  key heads    S  keys         E  numbers of a value
    G  query heads of each key head

    q (N, K, G, T, D)    k (N, K, S, D)    v (N, K, S, E)    y (N, K, G, T, E)

    lse (N, K, G, T)    the logarithm of the sum of e^score of each query: -inf where it sees no key

The scores of a block of queries with all keys that they see are in cache from the first product to
the second one. The backward pass computes them again, from lse, so memory is linear in T and S.
Which queries make a block depends on T and S alone: cutting samples or heads among ranks changes no
bit. Attention to some keys and to others is that to all, by `join`.
"""

from collections.abc import Callable, Iterator
from typing import NamedTuple

from nnmpi.backend import Array, of, xp_of
from nnmpi.kernels import progress_hook
from nnmpi.kernels.softmax import softmax_loop
from nnmpi.native.table import kernel

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


KeepRows = Callable[[slice, slice], Array]
"""`Keep` of some queries and keys, of samples and heads that are given."""


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

    def of(self, at: tuple[slice, slice]) -> tuple[float, bool, Array | None, KeepRows | None]:
        """What the loops take, of some samples and heads."""
        mask, keep = self.mask if self.mask is None else self.mask[at], self.keep
        rows = None if keep is None else lambda queries, keys: keep(Block(*at, queries, keys))
        return self.scale, self.causal, mask, rows


def attention(q: Array, k: Array, v: Array, how: Scores, y: Array, lse: Array) -> None:
    """Writes y and lse."""
    progress = progress_hook.get()
    for at in _parts(q, k):
        attention_loop(q[at], k[at], v[at], y[at], lse[at], *how.of(at))
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

    Where y and lse are those of other keys too, these are the parts that go through k and v.
    """
    progress = progress_hook.get()
    for at in _parts(q, k):
        arrays = (a[at] for a in (q, k, v, y, lse, dy, dq, dk, dv))
        attention_gradient_loop(*arrays, *how.of(at))
        progress()


def join(y: Array, lse: Array, others: Array, lse_of_others: Array) -> None:
    """Makes y and lse those of their keys and of others."""
    xp = xp_of(y)
    both = xp.logaddexp(lse, lse_of_others)
    y *= xp.exp(lse - both)[..., None]
    y += others * xp.exp(lse_of_others - both)[..., None]
    lse[...] = both


@kernel
def attention_loop(
    q: Array,
    k: Array,
    v: Array,
    y: Array,
    lse: Array,
    scale: float,
    causal: bool,
    mask: Array | None,
    keep: KeepRows | None,
) -> None:
    """`attention` of some samples and heads."""
    xp = xp_of(q)
    if not k.shape[2]:
        y[...], lse[...] = 0, -xp.inf
    for rows, keys in _blocks(q, k, causal):
        s, seen = _scores(q, k, rows, keys, scale, causal, mask)
        p = xp.empty_like(s)
        softmax_loop(s, p, -1)
        lse[..., rows] = s.max(axis=-1) - xp.log(p.max(axis=-1))  # the largest p is e^(s - lse)
        if seen is not None:
            p *= seen
        if keep is not None:
            p *= keep(rows, keys)
        y[..., rows, :] = xp.matmul(p, v[:, :, None, keys])


@kernel
def attention_gradient_loop(
    q: Array,
    k: Array,
    v: Array,
    y: Array,
    lse: Array,
    dy: Array,
    dq: Array,
    dk: Array,
    dv: Array,
    scale: float,
    causal: bool,
    mask: Array | None,
    keep: KeepRows | None,
) -> None:
    """`attention_gradients` of some samples and heads: ds = scale p (dp - sum(dy y))."""
    xp = xp_of(q)
    for d in (dq, dk, dv):
        d[...] = 0
    for rows, keys in _blocks(q, k, causal):
        s, seen = _scores(q, k, rows, keys, scale, causal, mask)
        p = xp.exp(s - lse[..., rows, None]).astype(s.dtype, copy=False)
        if seen is not None:
            p *= seen
        g, kept = dy[..., rows, :], None if keep is None else keep(rows, keys)
        dv[:, :, keys] += _over_group(p if kept is None else p * kept, g)
        ds = xp.matmul(g, v[:, :, None, keys].swapaxes(-1, -2))
        if kept is not None:
            ds *= kept
        ds -= (g * y[..., rows, :]).sum(axis=-1, keepdims=True)
        ds *= p
        ds *= scale
        dq[..., rows, :] = xp.matmul(ds, k[:, :, None, keys])
        dk[:, :, keys] += _over_group(ds, q[..., rows, :])


def _parts(q: Array, k: Array) -> Iterator[tuple[slice, slice]]:
    """Samples and key heads, so many at a time that some rows of all their scores are in cache."""
    (N, K, G, T, _), S = q.shape, k.shape[2]
    most = max(1, _room(q) // max(G * min(T, MOST_ROWS) * S, 1))
    heads = min(K, most) or 1
    samples = max(1, most // heads) if heads == K else 1
    for n in range(0, N, samples):
        for h in range(0, K, heads):
            yield slice(n, min(n + samples, N)), slice(h, min(h + heads, K))


def _blocks(q: Array, k: Array, causal: bool) -> Iterator[tuple[slice, slice]]:
    """Queries, and the first keys, which are those that they see; all of which a key is seen."""
    T, S = q.shape[3], k.shape[2]
    rows = max(FEWEST_ROWS, min(T, _room(q) // (4 * max(S, 1))))
    if causal and of(q).is_host:
        rows = min(rows, MOST_ROWS)
    for t in range(0, T if S else 0, rows):
        last = min(t + rows, T)
        yield slice(t, last), slice(0, min(S, last) if causal else S)


def _room(q: Array) -> int:
    """How many scores, their gradients, and what BLAS packs, are in cache."""
    return of(q).chunk_bytes // (4 * int(q.itemsize))


def _over_group(a: Array, b: Array) -> Array:
    """a^T b, (n, h, keys, D), of a (n, h, G, rows, keys) and b (n, h, G, rows, D)."""
    product = xp_of(a).matmul(a.swapaxes(-1, -2), b)
    return product[:, :, 0] if product.shape[2] == 1 else product.sum(axis=2)


def _scores(
    q: Array, k: Array, rows: slice, keys: slice, scale: float, causal: bool, mask: Array | None
) -> tuple[Array, Array | None]:
    """The scores of a block, (n, h, G, rows, keys), and which of them a mask lets through."""
    xp, seen = xp_of(q), None
    s: Array = xp.matmul(q[..., rows, :] * scale, k[:, :, None, keys].swapaxes(-1, -2))
    if causal:
        _hide_later(s, rows.start)
    if mask is not None:
        part = mask[..., rows, keys]
        seen = part if part.dtype.kind == "b" else part > -xp.inf
        s = xp.where(part, s, -xp.inf) if part.dtype.kind == "b" else s + part
        s = xp.maximum(s, xp.finfo(s.dtype).min)  # rows that see nothing have a softmax, too
    return s, seen


def _hide_later(s: Array, first: int) -> None:
    """Hides from each query the keys behind its position, `first` and up."""
    xp = xp_of(s)
    rows, keys = s.shape[-2:]
    begin = min(first + 1, keys)  # keys before are seen by all
    later = xp.arange(begin, keys)[None, :] > first + xp.arange(rows)[:, None]
    s[..., begin:] += xp.where(later, -xp.inf, 0).astype(s.dtype)
