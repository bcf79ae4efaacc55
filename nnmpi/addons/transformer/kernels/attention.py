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

from nnmpi.addons.transformer.kernels.heads import Heads, without_gaps
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
from nnmpi.arrays.kernels.linear import matmul, products_loop
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


def attention(qkv: Heads, options: Scores, y: Array, lse: Array) -> None:
    """Computes attention, one tile of queries at a time: writes y, and the log-sum-exp of each
    query's scores to lse."""
    progress, (q, k, v, _) = progress_hook.get(), qkv
    if not k.shape[2]:
        y[...], lse[...] = 0, -xp_of(q).inf
    plain = q, k, v, options.scale, options.causal, y, lse
    if options.is_plain and _by_device("attention", q, plain):
        return
    q, k, v, _ = qkv.packed()
    for tile in tiles(q, k, options.causal):
        samples, heads, queries, keys = tile
        rows, seen = (samples, heads, slice(None), queries), (samples, heads, keys)
        attention_loop(q[rows], k[seen], v[seen], y[rows], lse[rows], *options.of(tile))
        progress()


def attention_gradients(
    qkv: Heads, options: Scores, y: Array, lse: Array, dy: Array, gradients: Heads
) -> None:
    """Computes the gradients of attention: writes `gradients` from the gradient dy of y.

    y and lse may be of attention to more keys than k has, as after `join`. Then the results are the
    parts of the gradients that belong to the keys in k; there must be no mask.
    """
    progress, (q, k, v, _) = progress_hook.get(), qkv
    if not q.shape[3] or not k.shape[2]:
        for d in gradients[:3]:
            d[...] = 0
        return
    plain = (q, k, v, y, lse), options.scale, options.causal, (dy, *gradients[:3])
    if options.is_plain and _by_device("attention_gradients", q, plain):
        return
    (q, k, v, _), dy = qkv.packed(), without_gaps(dy)
    dq, dk, dv, _ = packed = gradients.packed_zeros()
    for tile in tiles(q, k, options.causal):
        samples, heads, queries, keys = tile
        rows, seen = (samples, heads, slice(None), queries), (samples, heads, keys)
        head_gradients = dk[samples, heads], dv[samples, heads]
        # tiles of a head come in the order of queries: its first one clears the sums
        if not queries.start:
            sums = [_sums_for(d) for d in head_gradients]
        operands = q[rows], k[seen], v[seen], y[rows], lse[rows], dy[rows], dq[rows]
        attention_gradient_loop(*operands, *(d[:, :, keys] for d in sums), *options.of(tile))
        if types_of(dk.dtype).is_mixed and queries.stop == q.shape[3]:
            for total, d in zip(sums, head_gradients, strict=True):
                round_loop(total, d)
        progress()
    if packed is not gradients:
        gradients.unpack(packed)


def _by_device(name: str, q: Array, args: tuple[Any, ...]) -> bool:
    """Calls the device's kernel of this name; False if there is none, or if it does not take these
    arrays: then the caller computes by other code."""
    kernel_of_device = device_kernels(q).loops.get(name)
    return kernel_of_device is not None and kernel_of_device(*args) is not NotImplemented


def _sums_for(d: Array) -> Array:
    """Returns zeros in which to sum a gradient for d: d itself, which has zeros on a device, or a
    new float32 array if it has 16 bits."""
    types = types_of(d.dtype)
    if types.is_mixed:
        return xp_of(d).zeros(d.shape, types.sums)
    if of(d).is_host:
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
    progress = progress_hook.get()
    for part in parts(q, k, first):
        rows, keys = part.queries, part.keys
        p, factor, seen, later = _scores(q, k, part, scale, first, mask)
        probabilities_loop(p, lse[..., rows], factor, later)
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
        s, _, seen, later = _scores(q, k, part, scale, first, mask)
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
        _add_over_group(p if kept is None else p * kept, g, dv[:, :, keys])
        factors = cast(ds, q.dtype), k[:, :, None, keys]
        if of(dq).is_host:
            dq[..., rows, :] = matmul(*factors, dq.dtype)
        else:
            products_loop(*factors, dq[..., rows, :], False)
        _add_over_group(ds, q[..., rows, :], dk[:, :, keys])
        progress()


def _add_over_group(a: Array, b: Array, out: Array) -> None:
    """Adds a^T b of a (n, h, G, rows, keys) and b (n, h, G, rows, D), summed over G, to `out` (n,
    h, keys, D), which has the dtype of a."""
    transposed = cast(a, b.dtype).swapaxes(-1, -2)
    if a.shape[2] > 1:
        out += matmul(transposed, b, a.dtype).sum(axis=2)
    elif of(out).is_host:
        out += matmul(transposed[:, :, 0], b[:, :, 0], a.dtype)
    else:
        products_loop(transposed[:, :, 0], b[:, :, 0], out, True)


def _scores(
    q: Array, k: Array, part: Tile, scale: float, first: int, mask: Array | None
) -> tuple[Array, float, Array | None, int]:
    """Computes the scores, scale q k^T, of the queries of `part` with its keys: (n, h, G, rows,
    keys).

    Returns (s, factor, seen, later): the scores are s times `factor`. `seen` is True where the
    mask, which is applied, lets a query see a key; None without one. The caller must still hide the
    keys after later + i from row i, unless `later` is -1.
    """
    xp, rows, keys = xp_of(q), part.queries, part.keys
    later = first + rows.start if first >= 0 else -1
    # products are scaled, since q * scale would be rounded to 16 bits
    s: Array = matmul(q[..., rows, :], k[:, :, None, keys].swapaxes(-1, -2), types_of(q.dtype).sums)
    if mask is None:
        return s, scale, None, later
    s *= scale
    added = mask[..., rows, keys]
    seen: Array = added if added.dtype.kind == "b" else added > -xp.inf
    s = xp.where(added, s, -xp.inf) if added.dtype.kind == "b" else s + added
    s = xp.maximum(s, xp.finfo(s.dtype).min)  # a row that sees nothing needs a finite maximum
    if later >= 0:
        hide_later(s, later)
    return s, 1.0, seen, -1
