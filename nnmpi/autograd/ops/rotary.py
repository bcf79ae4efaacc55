"""Rotary positions: pairs of channels turned by angles that grow with the position.

    pair i, a + b j, at position t:   (a + b j) e^(j t base^(-2 i / D))

So the product of a query and a key depends on the difference of their positions only.
"""

import numpy as np

from nnmpi.arrays.backend import Array, xp_of
from nnmpi.arrays.dtypes import types_of
from nnmpi.arrays.kernels import Result


def rotary(
    x: Array,
    *,
    base: float,
    positions: Array | None = None,
    interleaved: bool = True,
    parts: int | None = None,
) -> Result:
    """x (N, T, ..., D) with its pairs of channels turned, in the type of sums; then it is rounded.

    positions: of (T,) or (N, T), integers; 0 to T - 1 by default
    interleaved: a pair is channels 2 i and 2 i + 1; otherwise i and i + D / 2
    parts: how many entries of the axis before the last are turned, the first ones; all by default
    """
    lead, D, types = x.shape[:-1], x.shape[-1], types_of(x.dtype)
    xp, angles = xp_of(x), _angles(x, base, positions)

    def turned(x: Array, angles: Array) -> Array:
        turn = xp.exp(1j * angles).astype(np.result_type(types.sums, np.complex64))
        pairs = x if interleaved else x.reshape(*lead, 2, D // 2).swapaxes(-1, -2)
        y = pairs.astype(types.sums, order="C").reshape(*lead, D)
        z = y.view(turn.dtype)[..., slice(parts), :]
        z *= turn
        if not interleaved:
            y = y.reshape(*lead, D // 2, 2).swapaxes(-1, -2).reshape(*lead, D)
        return y.astype(x.dtype) if types.is_mixed else y

    return Result(turned(x, angles), (lambda g, out: turned(g, -angles),))


def _angles(x: Array, base: float, positions: Array | None) -> Array:
    """The angles, (N or 1, T, 1, ..., D / 2), in float64: large ones have few digits in float32."""
    xp, D = xp_of(x), x.shape[-1]
    at = xp.arange(x.shape[1]) if positions is None else positions
    angles = at[..., None] * float(base) ** (-xp.arange(0, D, 2, dtype="float64") / D)
    lead = at.shape if at.ndim == 2 else (1, *at.shape)
    return angles.reshape(*lead, *(1,) * (x.ndim - 3), D // 2)
