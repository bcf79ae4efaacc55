"""Elementwise ops, with NumPy's broadcasting.

Every op in this folder is a function from arrays to a `Result`: a value, called `y` where a formula
needs it, and one vjp per argument. An argument may be a Python number, which has no gradient. The
tape keeps every array that a vjp closes over, and no others. So a vjp that needs only a shape must
close over the shape, not over the array.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from nnmpi.arrays.backend import Array, xp_of
from nnmpi.arrays.dtypes import is_float
from nnmpi.arrays.kernels import Result, Vjp
from nnmpi.arrays.kernels import activations as kernels
from nnmpi.arrays.kernels.epilogue import relu_gradient
from nnmpi.arrays.kernels.precision import (
    added,
    are_plain,
    as_type_of,
    by_float32,
    cast,
    elementwise,
    floating,
    in_layout,
    multiplied,
    promoted,
    subtracted,
    summed,
    widened_beside_numbers,
    widened_on_device,
)

Gradient = Callable[[Array], Array]
OfTwo = Callable[[Array, Array], Array]


def unbroadcast(g: Array, shape: tuple[int, ...]) -> Array:
    """Sums g over the axes along which an array of this shape was broadcast to g's shape."""
    if g.shape == shape:
        return g
    if g.ndim > len(shape):
        g = summed(g, tuple(range(g.ndim - len(shape))))
    broadcast = tuple(i for i, n in enumerate(shape) if n == 1 and g.shape[i] != 1)
    return summed(g, broadcast, True) if broadcast else g


def no_gradient(name: str) -> Vjp:
    """Makes the vjp of an op without a derivative in PyTorch, which raises RuntimeError."""

    def vjp(g: Array, out: Array | None) -> Array:
        raise RuntimeError(
            f"{name} has no gradient, in PyTorch neither: compute it from a tensor without "
            "gradient, as t.detach()"
        )

    return vjp


def _check_broadcast(name: str, a: Array, b: Array) -> None:
    """Raises ValueError, with both shapes in the message, unless the shapes broadcast."""
    shapes = [getattr(v, "shape", ()) for v in (a, b)]
    try:
        np.broadcast_shapes(*shapes)
    except ValueError:
        raise ValueError(f"{name}: shapes {shapes[0]} and {shapes[1]} do not broadcast") from None


def broadcasting(name: str, a: Array, b: Array) -> Array:
    """Calls the function `name` of NumPy or CuPy on a and b; errors have both shapes."""
    xp = xp_of(a) if hasattr(a, "shape") else xp_of(b)
    op = getattr(xp, name)
    return _checked(name, op, partial(in_layout, op), a, b)


def _numbers(name: str, a: Array, b: Array) -> Array:
    """Does what `broadcasting` says, for numbers: those of 16 bits are rounded once."""
    return by_float32(partial(broadcasting, name), a, b)


def _checked(name: str, plain: OfTwo, op: OfTwo, a: Array, b: Array) -> Array:
    """op(a, b), with a and b promoted to a common type by PyTorch's rules; plain(a, b) if they are
    float32 on the host, or numbers."""
    try:
        if are_plain(a, b):
            return plain(a, b)
        is_one_type = getattr(a, "dtype", None) is getattr(b, "dtype", None)
        return op(a, b) if is_one_type else op(*promoted(a, b))
    except ValueError:
        _check_broadcast(name, a, b)
        raise


def _vjps(a: Array, b: Array, da: Gradient, db: Gradient) -> tuple[Vjp, Vjp]:
    """The vjps of a binary op: `da` and `db`, summed from the broadcast shape back."""
    of_a, of_b = getattr(a, "shape", ()), getattr(b, "shape", ())
    return lambda g, out: unbroadcast(da(g), of_a), lambda g, out: unbroadcast(db(g), of_b)


def add(a: Array, b: Array) -> Result:
    """a + b."""
    y = _checked("add", operator.add, added, a, b)
    of_a, of_b = getattr(a, "shape", ()), getattr(b, "shape", ())
    return Result(y, (lambda g, out: unbroadcast(g, of_a), lambda g, out: unbroadcast(g, of_b)))


def subtract(a: Array, b: Array) -> Result:
    """a - b."""
    y = _checked("subtract", operator.sub, subtracted, a, b)
    return Result(y, _vjps(a, b, lambda g: g, _negated))


def multiply(a: Array, b: Array) -> Result:
    """a * b."""
    y = _checked("multiply", operator.mul, multiplied, a, b)
    return Result(y, (_times(b, a), _times(a, b)))


def _times(factor: Array, operand: Array) -> Vjp:
    """The vjp of one operand of a product, of which `factor` is the other."""
    shape = getattr(operand, "shape", ())
    return lambda g, out: unbroadcast(multiplied(g, factor), shape)


@widened_beside_numbers
def divide(a: Array, b: Array) -> Result:
    """a / b."""
    if not any(is_float(v.dtype) for v in (a, b) if hasattr(v, "dtype")):
        a, b = floating(a), floating(b)
    y = _numbers("divide", a, b)

    def da(g: Array) -> Array:
        return elementwise(operator.truediv, g, b)

    return Result(y, _vjps(a, b, da, lambda g: da(_negated(multiplied(g, y)))))


_BOOLEAN = np.dtype(bool)


def _is_boolean(value: Any) -> bool:
    return isinstance(value, bool) or getattr(value, "dtype", None) is _BOOLEAN


def _check_no_booleans(symbol: str, a: Array, b: Array) -> None:
    """Raises TypeError if both operands are booleans."""
    if _is_boolean(a) and _is_boolean(b):
        raise TypeError(f"{symbol} takes no two booleans: convert one first, as in t.long()")


@widened_beside_numbers
def remainder(a: Array, b: Array) -> Result:
    """a - b floor(a / b), with the sign of b; the gradient of b is -floor(a / b)."""
    _check_no_booleans("%", a, b)

    def db(g: Array) -> Array:
        return elementwise(lambda g, a, b: -g * (a // b), g, a, b)

    return Result(_numbers("remainder", a, b), _vjps(a, b, lambda g: g, db))


@widened_beside_numbers
def floor_divide(a: Array, b: Array) -> Result:
    """floor(a / b); as in PyTorch a backward pass through it raises RuntimeError."""
    _check_no_booleans("//", a, b)
    return Result(_numbers("floor_divide", a, b), (no_gradient("floor_divide"),) * 2)


@widened_on_device
@widened_beside_numbers
def power(a: Array, b: Array) -> Result:
    """a ** b; the gradient of a is 0 where b is 0, that of b is 0 where a is 0 and b >= 0."""
    _check_no_booleans("**", a, b)
    if b.__class__ is int and b < 0 and not is_float(a.dtype):
        raise ValueError(f"{a.dtype} ** {b} is no integer: write t.float() ** {b}")
    y = _numbers("power", a, b)

    def db(g: Array) -> Array:
        return in_layout(_exponents_gradient, g, y, a, b)

    def da(g: Array) -> Array:
        return elementwise(lambda g, a, b: g * b * a ** (b - (b != 0)), g, a, b)

    return Result(y, _vjps(a, b, da, db))


def _exponents_gradient(g: Array, y: Array, a: Array, b: Array) -> Array:
    xp = xp_of(y)
    base = xp.ones_like(y) * a
    flat = (base == 0) & (b >= 0)
    return g * y * xp.log(base + flat)


def _min_or_max(name: str, a: Array, b: Array, wins: Callable[[Any, Any], Array]) -> Result:
    a, b = as_type_of(a, b), as_type_of(b, a)
    y = _numbers(name, a, b)
    dtype = y.dtype

    def taken(g: Array, u: Array, v: Array) -> Array:
        """The share of g of operand u of an extreme: 1 where u is it, 1/2 where u equals v."""
        return g * (wins(u, v).astype(dtype) + (u == v).astype(dtype) / 2)

    of_a, of_b = (lambda g: in_layout(taken, g, a, b)), (lambda g: in_layout(taken, g, b, a))
    return Result(y, _vjps(a, b, of_a, of_b))


def maximum(a: Array, b: Array) -> Result:
    """The elementwise maximum; equal elements share the gradient, as in PyTorch."""
    return _min_or_max("maximum", a, b, operator.gt)


def minimum(a: Array, b: Array) -> Result:
    """The elementwise minimum; equal elements share the gradient, as in PyTorch."""
    return _min_or_max("minimum", a, b, operator.lt)


def where(chosen: Array, a: Array, b: Array) -> Result:
    """The elements of a where `chosen` is true, those of b elsewhere; `chosen` has no gradient."""
    xp, (a, b) = xp_of(chosen), promoted(as_type_of(a, b), as_type_of(b, a))
    _check_broadcast("where", chosen, a)
    _check_broadcast("where", chosen, b)

    def masked(g: Array, branch: int) -> Array:
        return in_layout(lambda g, chosen: g * ((chosen != 0) == branch), g, chosen)

    vjps = _vjps(a, b, lambda g: masked(g, 1), lambda g: masked(g, 0))
    y = in_layout(xp.where, chosen, a, b)
    if hasattr(a, "dtype") and a.dtype == getattr(b, "dtype", None):
        y = cast(y, a.dtype)  # CuPy's where lacks some dtypes, and returns a wider one
    return Result(y, (lambda g, out: xp.zeros(chosen.shape, g.dtype), *vjps))


def _negated(a: Array) -> Array:
    return in_layout(operator.neg, a)


def negative(a: Array) -> Result:
    """-a."""
    return Result(_negated(a), (lambda g, out: _negated(g),))


def exp(a: Array) -> Result:
    """e ** a."""
    a = floating(a)
    y = elementwise(xp_of(a).exp, a)
    return Result(y, (lambda g, out: multiplied(g, y),))


def log(a: Array) -> Result:
    """The natural logarithm, elementwise."""
    a = floating(a)
    y = elementwise(xp_of(a).log, a)
    return Result(y, (lambda g, out: elementwise(operator.truediv, g, a),))


def sqrt(a: Array) -> Result:
    """The square root, elementwise."""
    a = floating(a)
    y = elementwise(xp_of(a).sqrt, a)
    return Result(y, (lambda g, out: elementwise(lambda g, y: g / (2 * y), g, y),))


def _of_one(op: Gradient, a: Array, da: Callable[[Array, Array], Array]) -> Result:
    return Result(in_layout(op, a), (lambda g, out: in_layout(da, g, a),))


def absolute(a: Array) -> Result:
    """|a|; the gradient at 0 is 0."""
    xp = xp_of(a)
    return _of_one(xp.absolute, a, lambda g, a: g * xp.sign(a))


def sin(a: Array) -> Result:
    """The sine, elementwise."""
    xp, a = xp_of(a), floating(a)
    return _of_one(xp.sin, a, lambda g, a: g * xp.cos(a))


def cos(a: Array) -> Result:
    """The cosine, elementwise."""
    xp, a = xp_of(a), floating(a)
    return _of_one(xp.cos, a, lambda g, a: -g * xp.sin(a))


def tanh(a: Array) -> Result:
    """The hyperbolic tangent, elementwise."""
    return kernels.of_value(floating(a), kernels.tanh_loop, kernels.tanh_gradient_loop)


def sigmoid(a: Array) -> Result:
    """1 / (1 + e**-a)."""
    return kernels.of_value(floating(a), kernels.sigmoid_loop, kernels.sigmoid_gradient_loop)


def relu(a: Array) -> Result:
    """max(a, 0); the gradient at 0 is 0."""
    y = xp_of(a).empty_like(a)
    kernels.relu_loop(a, y)
    return Result(y, (lambda g, out: relu_gradient(g, y),))


def _bound(bound: Any, a: Array) -> Any:
    """A bound of `clip` as a number, which promotes no dtype, within an integer type's range."""
    bound = bound.item() if hasattr(bound, "item") else bound
    if a.dtype.kind in "iu" and isinstance(bound, int):
        limits = np.iinfo(a.dtype)
        return min(max(bound, limits.min), limits.max)
    return as_type_of(bound, a)


def clip(a: Array, *, low: float | None, high: float | None) -> Result:
    """The elements of a limited to [low, high]; the gradient passes inside, both ends included."""
    xp, a = xp_of(a), floating(a) if float in (low.__class__, high.__class__) else a
    y = a.copy("K") if low is None else in_layout(xp.maximum, a, _bound(low, a))
    if high is not None:
        y = in_layout(xp.minimum, y, _bound(high, a))
    return Result(y, (lambda g, out: in_layout(lambda g, y, a: g * (y == a), g, y, a),))


def clamp(a: Array, low: Array | None, high: Array | None) -> Result:
    """The elements of a limited to [low, high] (one may be None); NaN if any of these is.

    Each gets the gradient where it is the result: a at equal bounds too, and high where low is
    above it. As in PyTorch none does where a is outside and both bounds are equal.
    """
    y = a if low is None else _numbers("maximum", a, low)
    y = y if high is None else _numbers("minimum", y, high)
    least, most = -np.inf if low is None else low, np.inf if high is None else high
    is_closed = low is not None and high is not None

    def vjp(of: Array, is_chosen: Callable[[Any, Any, Any], Array]) -> Vjp:
        shape = getattr(of, "shape", ())

        def masked(g: Array, a: Any, low: Any, high: Any) -> Array:
            return g * is_chosen(a, low, high)

        return lambda g, out: unbroadcast(in_layout(masked, g, a, least, most), shape)

    return Result(
        y,
        (
            vjp(a, lambda a, low, high: (a >= low) & (a <= high)),
            vjp(least, lambda a, low, high: (a < low) & (low < high if is_closed else True)),
            vjp(most, lambda a, low, high: (a > high) | (high < low)),
        ),
    )


def astype(a: Array, *, dtype: Any) -> Result:
    """The values converted to another floating-point type; the gradient is converted back."""
    old_dtype = a.dtype
    return Result(a.astype(dtype), (lambda g, out: g.astype(old_dtype),))
