"""Activations with an op of their own: SiLU and the leaky ReLU."""

from nnmpi.autograd.ops.elementwise import sigmoid
from nnmpi.backend import Array
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
