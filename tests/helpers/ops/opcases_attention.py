"""Test cases of ops: attention, and other layers of transformers."""

from typing import Any

import numpy as np
from helpers.ops.opcases import Case, label

from nnmpi.addons.transformer.ops import attention, gates


def _attention(
    t: Any, q: Any, k: Any, v: Any, scale: float, mask: Any = None, causal: bool = False
) -> Any:
    mask = None if mask is None else t.as_tensor(mask)
    if mask is not None and mask.dtype != t.bool:
        mask = mask.to(q.dtype)
    return t.nn.functional.scaled_dot_product_attention(
        q, k, v, attn_mask=mask, is_causal=causal, scale=scale, enable_gqa=q.shape[1] != k.shape[1]
    )


def _self_attention(t: Any, qkv: Any, scale: float, causal: bool = False) -> Any:
    q, k, v = (qkv[:, :, :, i].transpose(1, 2) for i in range(3))
    return _attention(t, q, k, v, scale, causal=causal).transpose(1, 2)


def _rotary(
    t: Any,
    x: Any,
    base: float,
    positions: Any = None,
    interleaved: bool = True,
    parts: int | None = None,
) -> Any:
    """Pairs as complex numbers, times e^(i angle)."""
    D = x.shape[-1]
    at = t.arange(x.shape[1])[None] if positions is None else t.as_tensor(positions)
    angle = at[..., None] * base ** (-2 * t.arange(D // 2, dtype=x.dtype) / D)
    turn = t.polar(t.ones_like(angle), angle).reshape(-1, x.shape[1], *(1,) * (x.ndim - 3), D // 2)
    split = (D // 2, 2) if interleaved else (2, D // 2)
    pairs = x.unflatten(-1, split) if interleaved else x.unflatten(-1, split).transpose(-1, -2)
    y = t.view_as_real(t.view_as_complex(pairs.contiguous()) * turn)
    y = (y if interleaved else y.transpose(-1, -2)).flatten(-2)
    return y if parts is None else t.cat((y[..., :parts, :], x[..., parts:, :]), -2)


def _rotations() -> dict[str, Case]:
    options: dict[str, dict[str, Any]] = {
        "": {},
        " of halves": {"interleaved": False},
        " at given positions": {"positions": np.array([[3, 0, 7], [0, 1, 5000]])},
        " at given positions of all": {"positions": np.array([2, 1, 0]), "interleaved": False},
        " of parts": {"parts": 2},
    }
    shape = 2, 3, 2, 4, 6
    cases = {
        f"rotary{name}": Case(attention.rotary, (shape,), _rotary, {"base": 100.0, **some})
        for name, some in options.items()
    }
    cases["rotary of rows"] = Case(attention.rotary, ((2, 5, 4),), _rotary, {"base": 1e4})
    cases["rotary of nothing"] = Case(attention.rotary, ((0, 5, 2, 4),), _rotary, {"base": 1e4})
    return cases


def _cases() -> dict[str, Case]:
    rng = np.random.default_rng(0)
    sees = rng.random((2, 1, 5, 7)) < 0.5
    sees[0, 0, 2] = False  # nothing
    hides = np.where(rng.random((5, 7)) < 0.3, -np.inf, rng.standard_normal((5, 7)))
    q, k, v = (2, 4, 5, 3), (2, 2, 7, 3), (2, 2, 7, 6)
    options: dict[str, dict[str, Any]] = {
        "": {},
        " causal": {"causal": True},
        " with a mask": {"mask": sees},
        " with numbers added": {"mask": hides},
    }
    cases = {
        f"attention{name}": Case(attention.attention, (q, k, v), _attention, {"scale": 0.7, **some})
        for name, some in options.items()
    }
    long = (1, 1, 150, 2), (1, 1, 140, 2), (1, 1, 140, 2)  # several blocks
    for name in ("", " causal"):
        cases[f"attention, long{name}"] = Case(
            attention.attention, long, _attention, {"scale": 1.0, **options[name]}
        )
        cases[f"self-attention{name}"] = Case(
            attention.self_attention,
            ((2, 5, 2, 3, 4),),
            _self_attention,
            {"scale": 0.5} | options[name],
        )
    one = (1, 2, 1, 3)
    cases["attention of one position"] = Case(
        attention.attention, (one, one, one), _attention, {"scale": 1.0, "causal": True}
    )
    return cases


def _gates() -> dict[str, Case]:
    return {
        f"swiglu {label(size)}": Case(
            gates.swiglu,
            (size,),
            lambda t, a: t.nn.functional.silu(a[..., ::2]) * a[..., 1::2],
        )
        for size in ((5, 8), (2, 3, 6), (0, 4))
    }


ATTENTION = _cases() | _rotations() | _gates()
