"""Test cases of ops: attention."""

from typing import Any

import numpy as np
from helpers.ops.opcases import Case

from nnmpi.autograd.ops import attention


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


ATTENTION = _cases()
