"""Activations with an op of their own, and the error function of GELU."""

import math
from collections.abc import Callable

from nnmpi.autograd.ops.elementwise import sigmoid, unbroadcast
from nnmpi.backend import Array, xp_of
from nnmpi.kernels import Result


def silu(a: Array) -> Result:
    """a * sigmoid(a)."""
    s = sigmoid(a).value
    return Result(a * s, (lambda g, out: g * (s * (1 + a * (1 - s))),))


def leaky_relu(a: Array, *, slope: float) -> Result:
    """a where it is positive, slope * a elsewhere; the gradient at 0 is the slope."""
    # products keep channels-last memory, which xp.where does not
    positive = (a > 0).astype(a.dtype)
    factor = positive + (1 - positive) * slope
    return Result(a * factor, (lambda g, out: g * factor,))


def prelu(a: Array, w: Array) -> Result:
    """a where it is positive, w * a elsewhere; w (C,) is of the channels of a (N, C, ...)."""
    if w.size != 1 and (a.ndim < 2 or a.shape[1] != w.size):
        raise ValueError(
            f"prelu: input of shape {a.shape} for a weight of {w.size}: the input must be "
            f"(N, {w.size}, ...), or the weight one number"
        )
    slopes = w.reshape(((-1,) + (1,) * (a.ndim - 2))[: a.ndim])
    positive = (a > 0).astype(a.dtype)
    rest = 1 - positive
    factor = positive + rest * slopes
    return Result(
        a * factor,
        (
            lambda g, out: g * factor,
            lambda g, out: unbroadcast(g * a * rest, slopes).reshape(w.shape),
        ),
    )


def elu(a: Array, *, alpha: float) -> Result:
    """a where it is positive, alpha * (e**a - 1) elsewhere; the gradient at 0 is alpha."""
    xp = xp_of(a)
    low, positive = xp.minimum(a, 0), (a > 0).astype(a.dtype)
    return Result(
        xp.maximum(a, 0) + alpha * xp.expm1(low),
        (lambda g, out: g * (positive + (1 - positive) * (alpha * xp.exp(low))),),
    )


def softplus(a: Array, *, beta: float, threshold: float) -> Result:
    """log(1 + e**(beta a)) / beta, without overflow; a itself where beta a > threshold."""
    xp, z = xp_of(a), a * beta
    y = xp.maximum(z, 0) + xp.log1p(xp.exp(-xp.absolute(z)))
    return Result(
        xp.where(z > threshold, a, y / beta),
        (lambda g, out: g * xp.where(z > threshold, xp.ones_like(z), sigmoid(z).value),),
    )


# log(erfc(z)) + z^2 - log(t) with t = 1 / (1 + z/2), as a Chebyshev series in 2t - 1:
# interpolated at 64 nodes in 60-digit arithmetic. 28 terms give float64, 14 give float32.
_CHEBYSHEV = (
    -0.65132685989085471709,
    0.6419697923564902603,
    0.019476473204185836317,
    -0.0095615147868086316474,
    -0.00094659534448203686084,
    0.00036683949785276144655,
    0.000042523324806907776804,
    -0.00002027857811253424812,
    -1.6242900046470207683e-6,
    1.3036558355805187028e-6,
    1.562644172207037172e-8,
    -8.5238095914930477672e-8,
    6.5290544391024719231e-9,
    5.0593434955481828542e-9,
    -9.9136415649009914582e-10,
    -2.2736512229574948061e-10,
    9.6467911022339212419e-11,
    2.3940380812489559247e-12,
    -6.886027525110881136e-12,
    8.9448792633340131747e-13,
    3.1309214049367885277e-13,
    -1.1270822375373605955e-13,
    3.8109024550397839385e-16,
    7.1060983121851931005e-15,
    -1.5230293148083845958e-15,
    -9.4573423619697721844e-17,
    1.2102179633567604846e-16,
    -2.8164318215888218373e-17,
)


def erfc(x: Array) -> Array:
    """1 - erf(x) to rounding, in plain array arithmetic: NumPy has no erfc."""
    xp = xp_of(x)
    z = xp.absolute(x)
    t = 1 / (1 + z * 0.5)
    y = 4 * t - 2
    b1, b2 = xp.zeros_like(x), xp.zeros_like(x)
    for c in reversed(_CHEBYSHEV[1 : 28 if x.dtype.itemsize > 4 else 14]):
        b1, b2 = y * b1 - b2 + c, b1
    tail = t * xp.exp(0.5 * y * b1 - b2 + _CHEBYSHEV[0] - z * z)
    return xp.where(x < 0, 2 - tail, tail)


def gelu(a: Array) -> Result:
    """a * Phi(a), with Phi the distribution function of the standard normal."""
    xp = xp_of(a)
    phi = 0.5 * erfc(a * -math.sqrt(0.5))

    def vjp(g: Array, out: Array | None) -> Array:
        density = xp.exp(a * a * -0.5) * (1 / math.sqrt(2 * math.pi))
        return g * (phi + a * density)

    return Result(a * phi, (vjp,))


_SCALE, _CUBIC = math.sqrt(2 / math.pi), 0.044715


def gelu_tanh(a: Array) -> Result:
    """a / 2 * (1 + tanh(u)) with u = sqrt(2 / pi) * (a + 0.044715 a^3): about gelu(a)."""
    squares = a * a
    t = xp_of(a).tanh(a * (_SCALE + (_SCALE * _CUBIC) * squares))

    def vjp(g: Array, out: Array | None) -> Array:
        du = _SCALE + (3 * _SCALE * _CUBIC) * squares
        return g * (0.5 * (1 + t) + 0.5 * a * (1 - t * t) * du)

    return Result(0.5 * a * (1 + t), (vjp,))


GELUS = {"none": gelu, "tanh": gelu_tanh}
"""The forms of GELU by the name of their approximation, as in PyTorch."""


def gelu_form(approximate: str) -> Callable[[Array], Result]:
    """One of the forms."""
    if approximate not in GELUS:
        raise ValueError(f"GELU: approximate={approximate!r} is none of {', '.join(GELUS)}")
    return GELUS[approximate]
