"""Activations y = f(x) and their gradients: elementwise kernels, each in one pass over memory.

All arrays of a call have one memory layout, which may be any. One array is stored for the backward
pass: y itself, or the slope f'(x), and dx = g f'(x).
"""

import math
from typing import Any

from nnmpi.arrays.backend import Array, xp_of
from nnmpi.arrays.dtypes import float_type
from nnmpi.arrays.kernels import Result
from nnmpi.arrays.native.table import Kernel, Out, kernel


def floats_like(x: Array) -> Array:
    """Makes an empty float array with the shape and memory layout of x."""
    return xp_of(x).empty_like(x, None if x.dtype.kind == "f" else float_type(x))


def of_value(a: Array, loop: Kernel, gradient_loop: Kernel, *options: Any) -> Result:
    """Applies an activation whose gradient can be computed from its value y: `loop(a, y, *options)`
    writes the value, `gradient_loop(g, y, dx, *options)` the gradient."""
    y = floats_like(a)
    loop(a, y, *options)
    return Result(y, (lambda g, out: _gradient(gradient_loop, g, y, *options),))


def _gradient(loop: Kernel, g: Array, y: Array, *options: Any) -> Array:
    dx = floats_like(y)
    loop(g, y, dx, *options)
    return dx


@kernel
def relu_loop(x: Array, y: Out) -> None:
    """Writes y = max(x, 0)."""
    xp = xp_of(x)
    xp.maximum(x, xp.zeros_like(x[:1] if x.ndim else x), out=y)


@kernel
def tanh_loop(x: Array, y: Out) -> None:
    xp_of(x).tanh(x, out=y)


@kernel
def tanh_gradient_loop(g: Array, y: Array, dx: Out) -> None:
    xp = xp_of(y)
    xp.multiply(y, y, out=dx)
    xp.subtract(1, dx, out=dx)
    xp.multiply(g, dx, out=dx)


@kernel
def sigmoid_loop(x: Array, y: Out) -> None:
    """Writes y = 1 / (1 + e**-x), by e**-|x|, which cannot overflow."""
    xp = xp_of(x)
    e = xp.exp(-xp.absolute(x))
    xp.maximum(e, (x >= 0).astype(e.dtype), out=y)  # e**-|x| is at most 1
    e += 1
    y /= e


@kernel
def sigmoid_gradient_loop(g: Array, y: Array, dx: Out) -> None:
    xp = xp_of(y)
    rest = 1 - y
    xp.multiply(g, y, out=dx)
    dx *= rest


@kernel
def silu_loop(x: Array, slope: Out, y: Out) -> None:
    """Writes y = x s and slope = s (1 + x (1 - s)), with s = sigmoid(x)."""
    xp, s = xp_of(x), floats_like(x)
    sigmoid_loop.reference(x, s)
    xp.multiply(x, s, out=y)
    xp.subtract(1, s, out=slope)
    slope *= x
    slope += 1
    slope *= s


NEAR_0 = 2.0**-10
"""For |x| below this, the sigmoid of x is 1/2 + x/4 with an error of 2e-11, and 1/2 + x/4 - x^3/48
with an error of 2e-18."""


@kernel
def silu_gradient_loop(g: Array, x: Array, y: Array, dx: Out) -> None:
    """Writes dx = g s (1 + x (1 - s)), with s = y / x, near 0 a polynomial."""
    xp = xp_of(x)
    is_near = xp.absolute(x) < NEAR_0
    series = 0.5 + x * (0.25 - x * x / 48)
    s = xp.where(is_near, series, y / xp.where(is_near, xp.ones_like(x), x))
    xp.multiply(g, s + y * (1 - s), out=dx)


# log(erfc(z)) + z^2 - log(t) with t = 1 / (1 + z/2), as a Chebyshev series in 2t - 1:
# interpolated at 64 nodes in 60-digit arithmetic. 28 terms give float64, 14 give float32.
_CHEBYSHEV = (
    -0.65132685989085471709, 0.6419697923564902603, 0.019476473204185836317,
    -0.0095615147868086316474, -0.00094659534448203686084, 0.00036683949785276144655,
    0.000042523324806907776804, -0.00002027857811253424812, -1.6242900046470207683e-6,
    1.3036558355805187028e-6, 1.562644172207037172e-8, -8.5238095914930477672e-8,
    6.5290544391024719231e-9, 5.0593434955481828542e-9, -9.9136415649009914582e-10,
    -2.2736512229574948061e-10, 9.6467911022339212419e-11, 2.3940380812489559247e-12,
    -6.886027525110881136e-12, 8.9448792633340131747e-13, 3.1309214049367885277e-13,
    -1.1270822375373605955e-13, 3.8109024550397839385e-16, 7.1060983121851931005e-15,
    -1.5230293148083845958e-15, -9.4573423619697721844e-17, 1.2102179633567604846e-16,
    -2.8164318215888218373e-17,
)  # fmt: skip


def erfc(x: Array) -> Array:
    """Computes 1 - erf(x) up to rounding with array operations, since NumPy has no erfc."""
    xp = xp_of(x)
    z = xp.absolute(x)
    t = 1 / (1 + z * 0.5)
    y = 4 * t - 2
    b1, b2 = xp.zeros_like(x), xp.zeros_like(x)
    for c in reversed(_CHEBYSHEV[1 : 28 if x.dtype.itemsize > 4 else 14]):
        b1, b2 = y * b1 - b2 + c, b1
    tail = t * xp.exp(0.5 * y * b1 - b2 + _CHEBYSHEV[0] - z * z)
    return xp.where(x < 0, 2 - tail, tail)


@kernel
def gelu_loop(x: Array, slope: Out, y: Out) -> None:
    """Writes y = x phi and slope = phi + x phi', of the normal distribution function phi."""
    xp, phi = xp_of(x), floats_like(x)
    xp.multiply(erfc(x * -math.sqrt(0.5)), 0.5, out=phi)
    xp.multiply(x, phi, out=y)
    density = xp.exp(x * x * -0.5)
    density *= 1 / math.sqrt(2 * math.pi)
    xp.multiply(x, density, out=slope)
    slope += phi


_SCALE, _CUBIC = math.sqrt(2 / math.pi), 0.044715


@kernel
def gelu_tanh_loop(x: Array, slope: Out, y: Out) -> None:
    """Writes GELU by tanh, y = x s, and slope = s + 2 x s (1 - s) du/dx.

    Here u = sqrt(2 / pi) (x + 0.044715 x^3) and s = (1 + tanh(u)) / 2 = sigmoid(2 u).
    """
    xp, s = xp_of(x), floats_like(x)
    u = x * x
    u *= _SCALE * _CUBIC
    u += _SCALE
    u *= x
    xp.tanh(u, out=s)
    s += 1
    s *= 0.5
    xp.multiply(x, s, out=y)
    du = x * x
    du *= 3 * _SCALE * _CUBIC
    du += _SCALE
    rest = 1 - s
    xp.multiply(x, s, out=slope)
    slope *= rest
    slope *= du
    slope *= 2
    slope += s
