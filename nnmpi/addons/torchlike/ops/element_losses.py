"""Losses of each element, such as binary cross-entropy, before they are reduced."""

from __future__ import annotations

import numpy as np

from nnmpi.arrays.backend import Array, xp_of
from nnmpi.arrays.kernels import Result
from nnmpi.arrays.kernels.precision import widened

LEAST_LOG = -100.0
"""The least log of a probability, as in PyTorch: one sample could make a loss infinite."""

LEAST_VARIANCE = float(np.float32(1e-12))
"""The smallest divisor p (1 - p) of a gradient, as in PyTorch."""


@widened
def bce(p: Array, y: Array) -> Result:
    """The binary cross-entropy -(y log(p) + (1 - y) log(1 - p)) of probabilities p, not reduced."""
    xp, least = xp_of(p), max(LEAST_VARIANCE, float(np.finfo(p.dtype).tiny))
    with np.errstate(divide="ignore"):
        log_p = xp.maximum(xp.log(p), LEAST_LOG)
        log_q = xp.maximum(xp.log1p(-p), LEAST_LOG)
    return Result(
        (y - 1) * log_q - y * log_p,
        (
            lambda g, out: g * (p - y) / xp.maximum(p * (1 - p), least),
            lambda g, out: g * (log_q - log_p),
        ),
    )


@widened
def bce_with_logits(z: Array, y: Array, *, pos_weight: Array | float = 1.0) -> Result:
    """The binary cross-entropy of p = sigmoid(z) with labels y, -(w y log(p) + (1 - y) log(1 - p)),
    where w is `pos_weight`; computed from e**-|z|, so it does not overflow."""
    xp = xp_of(z)
    e = xp.exp(-xp.absolute(z))
    minus_log_p = xp.log1p(e) + xp.maximum(-z, 0.0)
    positive = pos_weight * y

    def vjp_z(g: Array, out: Array | None) -> Array:
        p = xp.where(z >= 0, xp.ones_like(e), e) / (1 + e)
        return g * ((positive + 1 - y) * p - positive)

    return Result(
        (1 - y) * z + (positive + 1 - y) * minus_log_p,
        (vjp_z, lambda g, out: g * ((pos_weight - 1.0) * minus_log_p - z)),
    )


@widened
def smooth_l1(d: Array, *, beta: float) -> Result:
    """d**2 / (2 beta) where |d| < beta, and |d| - beta / 2 elsewhere."""
    xp = xp_of(d)
    size = xp.absolute(d)
    y = xp.where(size < beta, d * d * (0.5 / beta), size - 0.5 * beta)
    return Result(y, (lambda g, out: g * xp.clip(d / beta, -1.0, 1.0),))
