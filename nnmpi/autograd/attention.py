"""Attention as a function of tensors."""

from typing import Any

from nnmpi.arrays import backend
from nnmpi.autograd.functional import as_tensors
from nnmpi.autograd.ops import attention
from nnmpi.autograd.tensor import Tensor, apply, as_tensor


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

    attn_mask: bool, true where a query sees a key, or numbers that are added; broadcast to scores
    scale: 1 / sqrt(D) by default; `is_causal`: query i sees keys 0 to i only
    enable_gqa: k and v have fewer heads, each for several of q in a row

    The scores of a few queries are in memory at a time. A query that sees no key gets zeros.
    """
    q, k, v = as_tensors(query, key, value)
    if dropout_p:
        raise ValueError(
            f"scaled_dot_product_attention: dropout_p={dropout_p}: masks belong to a layer, which "
            "has a path and a seed: use nn.SelfAttention(dropout=...), or leave it out"
        )
    _check_attention(q.shape, k.shape, v.shape, enable_gqa)
    lead, H = q.shape[:-3], q.shape[-3]
    rows = [t if t.ndim == 4 else t.reshape(-1, *t.shape[-3:]) for t in (q, k, v)]
    options: dict[str, Any] = {"causal": is_causal}
    if attn_mask is not None:
        if is_causal:
            raise ValueError("scaled_dot_product_attention: give attn_mask or is_causal, not both")
        mask = as_tensor(attn_mask, backend.of(q.data)).data
        whole = (*lead, H, q.shape[-2], k.shape[-2])
        xp = backend.xp_of(mask)
        options["mask"] = xp.broadcast_to(mask, whole).reshape(-1, *whole[-3:])
    options["scale"] = q.shape[-1] ** -0.5 if scale is None else scale
    y = apply(attention.attention, *rows, **options)
    return y if q.ndim == 4 else y.reshape(*lead, *y.shape[1:])


def _check_attention(
    q: tuple[int, ...], k: tuple[int, ...], v: tuple[int, ...], enable_gqa: bool
) -> None:
    """Raises ValueError unless the shapes of queries, keys and values fit."""
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
