"""Activations that have an op of their own: SiLU, GELU, ELU, PReLU, leaky ReLU, softplus."""

from __future__ import annotations

import operator
from collections.abc import Callable

from nnmpi.arrays.backend import Array, xp_of
from nnmpi.arrays.kernels import Result
from nnmpi.arrays.kernels import activations as kernels
from nnmpi.arrays.kernels.precision import elementwise, in_layout, multiplied, widened
from nnmpi.arrays.native.table import Kernel
from nnmpi.autograd.ops.elementwise import sigmoid, unbroadcast


def _smooth(a: Array, loop: Kernel) -> Result:
    """Computes an activation by a kernel of values and slopes; backward keeps the slopes only."""
    y, slope = kernels.floats_like(a), kernels.floats_like(a)
    loop(a, slope, y)
    return Result(y, (lambda g, out: multiplied(g, slope),))


def silu(a: Array) -> Result:
    """a * sigmoid(a)."""
    return _smooth(a, kernels.silu_loop)


def leaky_relu(a: Array, *, slope: float) -> Result:
    """a where a > 0, and slope * a elsewhere; the gradient at 0 is `slope`."""

    def slopes(a: Array) -> Array:
        positive = (a > 0).astype(a.dtype)
        return positive + (1 - positive) * slope

    factor = elementwise(slopes, a)
    return Result(multiplied(a, factor), (lambda g, out: multiplied(g, factor),))


def prelu(a: Array, w: Array) -> Result:
    """a where a > 0, else w * a, with one w for each channel of a (N, C, ...) or one for all."""
    if w.size != 1 and (a.ndim < 2 or a.shape[1] != w.size):
        raise ValueError(
            f"prelu: input of shape {a.shape} for a weight of {w.size}: the input must be "
            f"(N, {w.size}, ...), or the weight one number"
        )
    slopes = w.reshape(((-1,) + (1,) * (a.ndim - 2))[: a.ndim])
    of_slopes, of_w = slopes.shape, w.shape

    def factor(a: Array, slopes: Array) -> Array:
        positive = (a > 0).astype(a.dtype)
        return positive + (1 - positive) * slopes

    def of_negative(g: Array, a: Array) -> Array:
        return g * a * (1 - (a > 0).astype(a.dtype))

    factors = in_layout(factor, a, slopes)
    return Result(
        in_layout(operator.mul, a, factors),
        (
            lambda g, out: in_layout(operator.mul, g, factors),
            lambda g, out: unbroadcast(in_layout(of_negative, g, a), of_slopes).reshape(of_w),
        ),
    )


@widened
def elu(a: Array, *, alpha: float) -> Result:
    """a where a > 0, and alpha * (e**a - 1) elsewhere; the gradient at 0 is alpha."""
    xp = xp_of(a)

    def value(a: Array) -> Array:
        return xp.maximum(a, 0) + alpha * xp.expm1(xp.minimum(a, 0))

    def gradient(g: Array, a: Array) -> Array:
        positive = (a > 0).astype(a.dtype)
        return g * (positive + (1 - positive) * (alpha * xp.exp(xp.minimum(a, 0))))

    return Result(in_layout(value, a), (lambda g, out: in_layout(gradient, g, a),))


@widened
def softplus(a: Array, *, beta: float, threshold: float) -> Result:
    """log(1 + e**(beta a)) / beta without overflow; where beta a > threshold, a itself."""
    xp = xp_of(a)

    def value(a: Array) -> Array:
        z = a * beta
        y = xp.maximum(z, 0) + xp.log1p(xp.exp(-xp.absolute(z)))
        return xp.where(z > threshold, a, y / beta)

    def gradient(g: Array, a: Array) -> Array:
        z = a * beta
        return g * xp.where(z > threshold, xp.ones_like(z), sigmoid(z).value)

    return Result(in_layout(value, a), (lambda g, out: in_layout(gradient, g, a),))


def gelu(a: Array) -> Result:
    """a * Phi(a), with Phi the standard normal distribution function."""
    return _smooth(a, kernels.gelu_loop)


def gelu_tanh(a: Array) -> Result:
    """The tanh form of GELU: a / 2 * (1 + tanh(sqrt(2 / pi) * (a + 0.044715 a^3)))."""
    return _smooth(a, kernels.gelu_tanh_loop)


GELUS = {"none": gelu, "tanh": gelu_tanh}
"""The forms of GELU, by the value of PyTorch's argument `approximate`."""


def gelu_form(approximate: str) -> Callable[[Array], Result]:
    """The GELU op for PyTorch's `approximate` argument, "none" or "tanh"; ValueError for others."""
    if approximate not in GELUS:
        raise ValueError(f"GELU: approximate={approximate!r} must be one of {', '.join(GELUS)}")
    return GELUS[approximate]
