"""Attention: softmax(scale q k^T + mask) v, computed for some rows of scores at a time.

    N  samples      T  queries      D  elements of a query and a key
    K  key heads    S  keys         E  elements of a value
    G  query heads of each key head

    q (N, K, G, T, D)    k (N, K, S, D)    v (N, K, S, E)    y (N, K, G, T, E)

    lse (N, K, G, T)    the logarithm of the sum of e^score of each query; -inf if there are no keys

Scores, lse and sums have the `sums` dtype (`dtypes.py`) for q, k, v, y and their gradients; results
are rounded once. On a device cuDNN computes if it can (`cuda/sdpa.py`), without scores in memory;
elsewhere on a device factors of products are rounded to the dtype of q, as cuDNN rounds them.

The scores of a tile of queries (`tiles.py`), with all keys that they see, stay in cache between the
two products. The backward pass computes them again from lse, so memory is linear in T and S. `join`
combines attention to some keys with attention to others.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple, Protocol

from nnmpi.addons.transformer.kernels.scores import (
    hide_later,
    probabilities_loop,
    scores_gradient_loop,
    softmax_backward,
)
from nnmpi.addons.transformer.kernels.tiles import Tile, parts, tiles
from nnmpi.arrays.backend import Array, of, xp_of
from nnmpi.arrays.dtypes import types_of
from nnmpi.arrays.kernels import progress_hook
from nnmpi.arrays.kernels.linear import matmul
from nnmpi.arrays.kernels.precision import cast, round_loop
from nnmpi.arrays.kernels.softmax import softmax_loop
from nnmpi.arrays.native.table import InOut, Out, device_kernels, kernel


class Keep(Protocol):
    """A function that returns dropout's factors, 0 or 1 / (1 - p), for the probabilities of a tile,
    as a NamedTuple, so that a recorded call shows the arrays that it reads."""

    def __call__(self, tile: Tile, /) -> Array: ...


KeepOf = Callable[[Array, Array], Keep]
"""A function that makes a `Keep`, given the positions of queries and of keys in whole sequences."""


class Scores(NamedTuple):
    """How scores are computed from products q k^T, and probabilities from scores.

    scale    the factor of the products
    mask     broadcast to (N, K, G, T, S): bool, true if a query sees a key; or numbers that are
             added to the scores
    causal   True if query i sees keys 0 to i only
    keep     gives the dropout factors of probabilities, for each tile
    """

    scale: float
    mask: Array | None = None
    causal: bool = False
    keep: Keep | None = None

    @property
    def is_plain(self) -> bool:
        """True without mask and dropout: queries see all keys, or the first ones."""
        return self.mask is None and self.keep is None

    def of(self, tile: Tile) -> tuple[float, int, Array | None, Keep | None]:
        """Returns (scale, first, mask, keep) for a tile. Query i of it sees keys 0 to first + i, or
        all if first is -1; `keep` takes tiles with indices relative to this one."""
        samples, heads, queries, keys = tile
        mask = self.mask
        if mask is not None:
            mask = mask[samples, heads, :, queries, keys]
        keep: Keep | None = None if self.keep is None else _KeepWithin(self.keep, tile)
        return self.scale, queries.start if self.causal else -1, mask, keep


class _KeepWithin(NamedTuple):
    """A Keep for the inside of `tile`, called with tiles whose indices count from its beginning."""

    keep: Keep
    tile: Tile

    def __call__(self, part: Tile) -> Array:
        start = self.tile.queries.start
        rows = slice(start + part.queries.start, start + part.queries.stop)
        return self.keep(self.tile._replace(queries=rows, keys=part.keys))


def attention(q: Array, k: Array, v: Array, options: Scores, y: Array, lse: Array) -> None:
    """Computes attention, one tile of queries at a time: writes y, and the log-sum-exp of each
    query's scores to lse."""
    progress = progress_hook.get()
    if not k.shape[2]:
        y[...], lse[...] = 0, -xp_of(q).inf
    plain = q, k, v, options.scale, options.causal, y, lse
    if options.is_plain and _by_device("attention", q, plain):
        return
    q, k, v = map(_packed, (q, k, v))
    for tile in tiles(q, k, options.causal):
        samples, heads, queries, keys = tile
        rows, seen = (samples, heads, slice(None), queries), (samples, heads, keys)
        attention_loop(q[rows], k[seen], v[seen], y[rows], lse[rows], *options.of(tile))
        progress()


def attention_gradients(
    q: Array,
    k: Array,
    v: Array,
    options: Scores,
    y: Array,
    lse: Array,
    dy: Array,
    dq: Array,
    dk: Array,
    dv: Array,
) -> None:
    """Computes the gradients of attention: writes dq, dk and dv from the gradient dy of y.

    y and lse may be of attention to more keys than k has, as after `join`. Then the results are the
    parts of the gradients that belong to the keys in k; there must be no mask.
    """
    progress, (T, S) = progress_hook.get(), (q.shape[3], k.shape[2])
    for d in (dq, dk, dv) if not T or not S else ():
        d[...] = 0
    arrays, derivatives = (q, k, v, y, lse), (dy, dq, dk, dv)
    plain = arrays, options.scale, options.causal, derivatives
    if options.is_plain and _by_device("attention_gradients", q, plain):
        return
    q, k, v, dy = map(_packed, (q, k, v, dy))
    for tile in tiles(q, k, options.causal):
        samples, heads, queries, keys = tile
        rows, seen = (samples, heads, slice(None), queries), (samples, heads, keys)
        head_gradients = dk[samples, heads], dv[samples, heads]
        # tiles of a head come in the order of queries: its first one clears the sums
        if not queries.start:
            sums = [_zeros(d) for d in head_gradients]
        operands = q[rows], k[seen], v[seen], y[rows], lse[rows], dy[rows], dq[rows]
        attention_gradient_loop(*operands, *(d[:, :, keys] for d in sums), *options.of(tile))
        if types_of(dk.dtype).is_mixed and queries.stop == T:
            for total, d in zip(sums, head_gradients, strict=True):
                round_loop(total, d)
        progress()


def _by_device(name: str, q: Array, args: tuple[Any, ...]) -> bool:
    """Calls the device's kernel of this name; False if there is none, or if it does not take these
    arrays: then the caller computes by other code."""
    kernel_of_device = device_kernels(q).loops.get(name)
    return kernel_of_device is not None and kernel_of_device(*args) is not NotImplemented


def _packed(a: Array) -> Array:
    """Returns an array whose matrices lie at one distance in memory on a device, where a library
    then multiplies the matrices of all heads in one call; on the host the array itself."""
    return a if of(a).is_host else xp_of(a).ascontiguousarray(a)


def _zeros(d: Array) -> Array:
    """Returns zeros in which to sum a gradient for d: d itself, or a new float32 array if it has 16
    bits."""
    types = types_of(d.dtype)
    if types.is_mixed:
        return xp_of(d).zeros(d.shape, types.sums)
    d[...] = 0
    return d


def join(y: Array, lse: Array, others: Array, lse_of_others: Array) -> None:
    """Combines the attention of the same queries to two sets of keys, not both empty: y and lse,
    the results for the first set, become those for both; `others` and `lse_of_others` are for the
    second."""
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
    """Computes attention for one tile of samples, heads and queries: writes y, softmax(scale q k^T)
    v, and lse, the logarithm of the sum of e^score of each query.

    q (n, h, G, T, D), k (n, h, S, D), v (n, h, S, E): G query heads for each of h key heads. Query
    i sees keys 0 to first + i, or all if `first` is -1, and those that `mask` allows; `keep`
    returns dropout's factors of the probabilities.
    """
    xp, progress = xp_of(q), progress_hook.get()
    for part in parts(q, k, first):
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
    """Computes the gradients of attention for one tile: writes dq, and adds to dk and dv.

    Probabilities p are computed again from q, k and lse; the gradient of the scores is scale p (dp
    - sum(dy y)). The options are those of `attention_loop`.
    """
    xp, progress = xp_of(q), progress_hook.get()
    for part in parts(q, k, first):
        rows, keys = part.queries, part.keys
        s, seen, later = _scores(q, k, part, scale, first, mask)
        g, kept = dy[..., rows, :], None if keep is None else keep(part)
        ds = matmul(g, v[:, :, None, keys].swapaxes(-1, -2), s.dtype)
        if kept is not None:
            ds *= kept
        delta, p = (cast(g, s.dtype) * y[..., rows, :]).sum(axis=-1), s
        if seen is None:
            scores_gradient_loop(s, ds, lse[..., rows], delta, scale, later)
        else:  # lse may have lost its digits beside a large mask: take the softmax again
            p = xp.empty_like(s)
            softmax_loop(s, p, -1)
            p *= seen
            softmax_backward(p, ds, delta, scale)
        dv[:, :, keys] += _over_group(p if kept is None else p * kept, g)
        dq[..., rows, :] = matmul(cast(ds, q.dtype), k[:, :, None, keys], dq.dtype)
        dk[:, :, keys] += _over_group(ds, q[..., rows, :])
        progress()


def _over_group(a: Array, b: Array) -> Array:
    """Computes a^T b for a (n, h, G, rows, keys), b (n, h, G, rows, D), summed over G: (n, h, keys,
    D), in the dtype of a."""
    product = matmul(cast(a, b.dtype).swapaxes(-1, -2), b, a.dtype)
    return product[:, :, 0] if product.shape[2] == 1 else product.sum(axis=2)


def _scores(
    q: Array, k: Array, part: Tile, scale: float, first: int, mask: Array | None
) -> tuple[Array, Array | None, int]:
    """Computes the scores, scale q k^T, of the queries of `part` with its keys: (n, h, G, rows,
    keys).

    Returns (scores, seen, later). `seen` is True where the mask, which is applied, lets a query see
    a key; None without one. The caller must still hide the keys after later + i from row i, unless
    `later` is -1.
    """
    xp, seen, rows, keys = xp_of(q), None, part.queries, part.keys
    later = first + rows.start if first >= 0 else -1
    s: Array
    columns = k[:, :, None, keys].swapaxes(-1, -2)
    if types_of(q.dtype).is_mixed:  # q * scale would be rounded to 16 bits
        s = matmul(q[..., rows, :], columns, types_of(q.dtype).sums)
        s *= scale
    else:
        s = matmul(q[..., rows, :] * scale, columns)
    if mask is not None:
        added = mask[..., rows, keys]
        seen = added if added.dtype.kind == "b" else added > -xp.inf
        s = xp.where(added, s, -xp.inf) if added.dtype.kind == "b" else s + added
        s = xp.maximum(s, xp.finfo(s.dtype).min)  # a row that sees nothing needs a finite maximum
        if later >= 0:
            hide_later(s, later)
        later = -1
    return s, seen, later
