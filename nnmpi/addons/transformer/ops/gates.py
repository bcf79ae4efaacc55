"""Gated activations, such as SwiGLU: half of the channels gate the other half."""

from __future__ import annotations

from nnmpi.arrays.backend import Array, xp_of
from nnmpi.arrays.kernels import Result
from nnmpi.arrays.kernels import activations as kernels
from nnmpi.arrays.kernels.precision import multiplied


def swiglu(a: Array) -> Result:
    """SwiGLU: silu(gate) * value (..., n), where channels 2 i and 2 i + 1 of a (..., 2 n) are gate
    i and value i. Only a is kept, and silu and its slope are computed again for the backward pass:
    to keep them would take 50% more memory."""
    xp, shape = xp_of(a), a.shape
    gate, up = (xp.ascontiguousarray(a[..., i::2]) for i in (0, 1))

    def silu_and_slope() -> tuple[Array, Array]:
        y, slope = kernels.floats_like(gate), kernels.floats_like(gate)
        kernels.silu_loop(gate, slope, y)
        return y, slope

    def vjp(g: Array, out: Array | None) -> Array:
        y, slope = silu_and_slope()
        d = xp.empty(shape, g.dtype)
        d[..., ::2], d[..., 1::2] = multiplied(multiplied(g, up), slope), multiplied(g, y)
        return d

    return Result(multiplied(silu_and_slope()[0], up), (vjp,))
