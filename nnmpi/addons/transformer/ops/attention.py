"""Attention, where each query takes a weighted mean of the values of the keys that it sees, and
rotary positions: they take pairs of channels as complex numbers, and pair i, a + b j, at position t
becomes

    (a + b j) e^(j t base^(-2 i / D))

So the product of a rotated query and a rotated key depends only on the difference of positions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from nnmpi.addons.transformer.kernels import attention as kernels
from nnmpi.addons.transformer.kernels.attention import Keep, Scores
from nnmpi.addons.transformer.kernels.heads import Heads
from nnmpi.arrays.backend import Array, xp_of
from nnmpi.arrays.dtypes import types_of
from nnmpi.arrays.kernels import Result, shared_vjps


def attention(
    q: Array,
    k: Array,
    v: Array,
    *,
    scale: float,
    mask: Array | None = None,
    causal: bool = False,
    keep: Keep | None = None,
) -> Result:
    """softmax(scale q k^T + mask) v of q (N, H, T, D), k (N, K, S, D), v (N, K, S, E).

    mask: broadcasts to (N, H, T, S): bool, true where a query sees a key, or added to the scores
    causal: query i sees keys 0 to i only
    keep: returns dropout's factors, 0 or 1 / (1 - p), for a block of probabilities

    Query head h uses key head h // (H / K). The value (N, H, T, E) lies in memory as (N, T, H, E),
    which the next layer takes without a copy.
    """
    if mask is not None:
        (N, H, T, _), (K, S) = q.shape, k.shape[1:3]
        mask = xp_of(q).broadcast_to(mask, (N, H, T, S)).reshape(N, K, H // K, T, S)
    scores = Scores(scale, mask, causal, keep)
    y, lse = _by_position((*q.shape[:3], v.shape[3]), q), _lse(_grouped(q, k))
    kernels.attention(Heads(_grouped(q, k), k, v), scores, _grouped(y, k), lse)

    def prepare(g: Array, needs: Sequence[bool]) -> list[Array]:
        dq, dk, dv = gradients = [_by_position(a.shape, a) for a in (q, k, v)]
        rows, of_rows = Heads(_grouped(q, k), k, v), Heads(_grouped(dq, k), dk, dv)
        of_y = _grouped(y, k), lse, _grouped(g, k)
        kernels.attention_gradients(rows, scores, *of_y, of_rows)
        return gradients

    return Result(y, shared_vjps(3), prepare)


def self_attention(
    qkv: Array, *, scale: float, causal: bool = False, keep: Keep | None = None
) -> Result:
    """Attention of queries, keys and values packed in one array qkv (N, T, K, G + 2, D): at each
    position, for each of K key heads, G queries, the key and the value. Returns (N, T, K G, D); the
    options are those of `attention`."""
    heads, xp = Heads.of(qkv), xp_of(qkv)
    N, T, K, parts, D = qkv.shape
    y, scores = xp.empty((N, T, K * (parts - 2), D), qkv.dtype), Scores(scale, None, causal, keep)
    rows, lse = _grouped(y.transpose(0, 2, 1, 3), heads.k), _lse(heads.q)
    kernels.attention(heads, scores, rows, lse)

    def vjp(g: Array, out: Array | None) -> Array:
        d = xp.empty(qkv.shape, qkv.dtype)
        of_y = _grouped(g.transpose(0, 2, 1, 3), heads.k), Heads.of(d)
        kernels.attention_gradients(heads, scores, rows, lse, *of_y)
        return d

    return Result(y, (vjp,))


def in_16_bits(args: Sequence[Any], options: Mapping[str, Any]) -> bool:
    """Returns True: attention computes in 16 bits within autocast, as products do."""
    return True


def _grouped(q: Array, k: Array) -> Array:
    """A view of q (N, H, T, D) as (N, K, G, T, D): the G query heads of each of the K key heads."""
    N, H, T, D = q.shape
    K = k.shape[1]
    return q.reshape(N, K, H // K if K else 0, T, D)


def _lse(q: Array) -> Array:
    """Returns an empty array for the lse of q (N, K, G, T, D), in the dtype of sums."""
    return xp_of(q).empty(q.shape[:-1], types_of(q.dtype).sums)


def _by_position(shape: tuple[int, ...], like: Array) -> Array:
    """Returns an empty array (N, H, T, D) like `like`, in memory order (N, T, H, D)."""
    N, H, T, D = shape
    return xp_of(like).empty((N, T, H, D), like.dtype).transpose(0, 2, 1, 3)


def rotary(
    x: Array,
    *,
    base: float,
    positions: Array | None = None,
    interleaved: bool = True,
    parts: int | None = None,
) -> Result:
    """x (N, T, ..., D) with rotary positions, computed in the accumulation type (float32 for 16
    bits), and then rounded.

    positions: integers (T,) or (N, T); by default 0 to T - 1
    interleaved: a pair is channels 2 i and 2 i + 1; otherwise i and i + D / 2
    parts: if given, only x[..., :parts, :] is rotated, such as queries and keys without values
    """
    lead, D, types = x.shape[:-1], x.shape[-1], types_of(x.dtype)
    xp = xp_of(x)

    def turned(x: Array, towards: float) -> Array:
        # computed again for the gradient: angles of all positions, kept in each layer, add up
        angles = towards * _angles(x, base, positions)
        turn = xp.exp(1j * angles).astype(np.result_type(types.sums, np.complex64))
        pairs = x if interleaved else x.reshape(*lead, 2, D // 2).swapaxes(-1, -2)
        y = pairs.astype(types.sums, order="C").reshape(*lead, D)
        z = y.view(turn.dtype)[..., slice(parts), :]
        z *= turn
        if not interleaved:
            y = y.reshape(*lead, D // 2, 2).swapaxes(-1, -2).reshape(*lead, D)
        return y.astype(x.dtype) if types.is_mixed else y

    return Result(turned(x, 1.0), (lambda g, out: turned(g, -1.0),))


def _angles(x: Array, base: float, positions: Array | None) -> Array:
    """The rotation angles (N or 1, T, 1, ..., D / 2) of the pairs of channels of x: position *
    base^(-2 i / D) for pair i. They are float64, since large angles lose digits in float32."""
    xp, D = xp_of(x), x.shape[-1]
    position = xp.arange(x.shape[1]) if positions is None else positions
    turns = xp.empty(D // 2, "float64")  # for arrays without data, it has none either
    turns[...] = float(base) ** (-xp.arange(0, D, 2, dtype="float64") / D)
    angles = position[..., None] * turns
    lead = position.shape if position.ndim == 2 else (1, *position.shape)
    return angles.reshape(*lead, *(1,) * (x.ndim - 3), D // 2)
