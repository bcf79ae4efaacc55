"""Rotary positions: pairs of channels turned by angles that grow with the position.

    pair i, (a, b), at position t:   (a cos - b sin, b cos + a sin)  of the angle t base^(-2 i / D)

So the product of a query and a key depends on the difference of their positions only.
"""

from functools import partial
from typing import Any

from nnmpi.backend import Array, xp_of
from nnmpi.dtypes import on_host_in_16_bits
from nnmpi.kernels import Result
from nnmpi.kernels.halves import in_float32


def rotary(
    x: Array,
    *,
    base: float,
    positions: Array | None = None,
    interleaved: bool = True,
    parts: int | None = None,
) -> Result:
    """x (N, T, ..., D) with its pairs of channels turned.

    positions: of (T,) or (N, T), integers; 0 to T - 1 by default
    interleaved: a pair is channels 2 i and 2 i + 1; otherwise i and i + D / 2
    parts: how many entries of the axis before the last are turned, the first ones; all by default
    """
    if on_host_in_16_bits(x):
        options: dict[str, Any] = {"interleaved": interleaved, "parts": parts}
        return in_float32(partial(rotary, base=base, positions=positions, **options), x)
    xp, half = xp_of(x), x.shape[-1] // 2
    angles = _angles(x, base, positions)
    cos, sin = (f(angles).astype(x.dtype) for f in (xp.cos, xp.sin))
    ends = (slice(half), slice(half, None))
    pairs = (slice(0, None, 2), slice(1, None, 2)) if interleaved else ends
    first, second = ((..., slice(parts), of) for of in pairs)

    def turned(x: Array, sin: Array) -> Array:
        y = xp.empty(x.shape, x.dtype) if parts is None else x.copy()
        a, b = x[first], x[second]
        y[first] = a * cos - b * sin
        y[second] = b * cos + a * sin
        return y

    return Result(turned(x, sin), (lambda g, out: turned(g, -sin),))


def _angles(x: Array, base: float, positions: Array | None) -> Array:
    """The angles, (N or 1, T, 1, ..., D / 2); float32 would leave large ones without digits."""
    xp, D = xp_of(x), x.shape[-1]
    at = xp.arange(x.shape[1]) if positions is None else positions
    found = at[..., None] * float(base) ** (-xp.arange(0, D, 2, dtype="float64") / D)
    lead = at.shape if at.ndim == 2 else (1, *at.shape)
    return found.reshape(*lead, *(1,) * (x.ndim - 3), D // 2)
