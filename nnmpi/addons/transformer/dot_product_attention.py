"""Scaled dot-product attention as a function of queries, keys and values."""

from typing import Any, NamedTuple

from nnmpi.addons.transformer.kernels.attention import Keep
from nnmpi.addons.transformer.kernels.tiles import Tile
from nnmpi.addons.transformer.ops import attention
from nnmpi.arrays import backend
from nnmpi.arrays.backend import Array
from nnmpi.autograd import Tensor, apply, as_tensor
from nnmpi.autograd.functional import as_tensors
from nnmpi.autograd.recording import recording
from nnmpi.nn.drawn_masks import drawn_mask


def scaled_dot_product_attention(
    query: Any,
    key: Any,
    value: Any,
    attn_mask: Any = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """softmax(scale q k^T + attn_mask) v: q (..., H, T, D), k (..., H, S, D), v (..., H, S, E).

    attn_mask: bool, true where a query sees a key, or values added to the scores; it is broadcast
    scale: factor of q k^T, 1 / sqrt(D) by default
    is_causal: query i sees keys 0 to i only
    enable_gqa: k and v have fewer heads, and consecutive heads of q share one of them
    dropout_p: probabilities become 0 with this probability, by a mask (..., H, T, S) that depends
        on the seed and on the number of tensors drawn before

    The scores of only a few queries are in memory at a time. A query that sees no key gets zeros.
    """
    q, k, v = as_tensors(query, key, value)
    _check_attention(q.shape, k.shape, v.shape, enable_gqa)
    lead, H = q.shape[:-3], q.shape[-3]
    rows = [t if t.ndim == 4 else t.reshape(-1, *t.shape[-3:]) for t in (q, k, v)]
    options: dict[str, Any] = {"causal": is_causal}
    if attn_mask is not None:
        if is_causal:
            raise ValueError("scaled_dot_product_attention: give attn_mask or is_causal, not both")
        if isinstance(attn_mask, Tensor) and attn_mask.requires_grad and recording.get():
            raise ValueError(
                "scaled_dot_product_attention: attn_mask requires a gradient, which is not "
                "computed: write (q @ k.mT * scale + attn_mask).softmax(-1) @ v"
            )
        mask = as_tensor(attn_mask, backend.of(q.array)).array
        scores_shape = (*lead, H, q.shape[-2], k.shape[-2])
        xp = backend.xp_of(mask)
        options["mask"] = xp.broadcast_to(mask, scores_shape).reshape(-1, *scores_shape[-3:])
    if dropout_p:
        options["keep"] = _keep_of(rows[0]._array, rows[1]._array, dropout_p)
    options["scale"] = q.shape[-1] ** -0.5 if scale is None else scale
    y = apply(attention.attention, *rows, **options)
    return y if q.ndim == 4 else y.reshape(*lead, *y.shape[1:])


def _check_attention(
    q: tuple[int, ...], k: tuple[int, ...], v: tuple[int, ...], enable_gqa: bool
) -> None:
    """Raises ValueError unless the shapes of queries `q`, keys `k` and values `v` fit together.
    With `enable_gqa`, the number of query heads may be a multiple of the number of key heads."""
    fits = (
        len(q) == len(k) == len(v) >= 3
        and q[:-3] == k[:-3] == v[:-3]
        and k[-3:-1] == v[-3:-1]
        and q[-1] == k[-1]
        and (q[-3] == k[-3] or (enable_gqa and k[-3] and q[-3] % k[-3] == 0))
    )
    if not fits:
        raise ValueError(
            f"scaled_dot_product_attention: query {q}, key {k}, value {v}: they must be (..., H, "
            "T, D), (..., H, S, D) and (..., H, S, E); with enable_gqa, heads of the query are a "
            "multiple of the others"
        )


def _keep_of(q: Array, k: Array, p: float) -> Keep:
    """Draws a dropout mask for queries (N, H, T, D) and keys (N, K, S, D), H / K consecutive query
    heads sharing a key head; returns a function that maps a tile to its slice of the mask."""
    (N, H, T, _), (K, S) = q.shape, k.shape[1:3]
    name = "scaled_dot_product_attention"
    mask = drawn_mask(name, (N, H, T, S), p, q, f"write nn.SelfAttention(dropout={p})")
    return _Tiles(mask.reshape(N, K, H // K, T, S))


class _Tiles(NamedTuple):
    """A dropout mask (N, K, G, T, S), called with a tile."""

    mask: Array

    def __call__(self, tile: Tile) -> Array:
        return self.mask[tile.samples, tile.heads, :, tile.queries, tile.keys]
