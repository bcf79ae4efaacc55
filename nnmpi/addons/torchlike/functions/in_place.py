"""Methods that write into their tensor and return it, under PyTorch's names.

A tensor that no gradient needs is overwritten, and under `no_grad` any tensor; a backward pass that
needs the old values then raises RuntimeError. A tensor that a gradient needs, and whose memory no
view shares, becomes the result of the new op: `x.relu_()` acts as `x = x.relu()` for every
reference to x. In all other cases the methods raise RuntimeError, since writes are not recorded.
"""

from collections.abc import Callable
from operator import methodcaller
from typing import Any

from nnmpi.arrays.backend import xp_of
from nnmpi.autograd.method_factories import becomes, scaled, write_result
from nnmpi.autograd.tensor import Tensor


def _writing(name: str, text: str) -> Callable[..., Tensor]:
    """Makes the in-place version of the tensor method `name`: for "exp" the method `exp_`, which
    replaces the elements by their exponentials. `text` is the end of its docstring."""

    def method(t: Tensor, *others: Any, **options: Any) -> Tensor:
        return _written(t, methodcaller(name, *others, **options), *others, *options.values())

    method.__name__ = method.__qualname__ = f"{name}_"
    method.__doc__ = f"Replaces t by {text}."
    return method


def _written(t: Tensor, function: Callable[[Any], Any], *others: Any) -> Tensor:
    """Replaces t by function(t), which computes it from t and the values `others`."""
    read = [t, *(value for value in others if isinstance(value, Tensor))]
    if any(map(t.loses_gradient, read)) and becomes(t, function(t.before_write())):
        return t
    for value in read:
        t.to_write(value)
    result: Tensor = write_result(t, function(Tensor(t._array))._array)
    return result


abs_ = _writing("abs", "its absolute values")
addcdiv_ = _writing("addcdiv", "t + value * tensor1 / tensor2")
addcmul_ = _writing("addcmul", "t + value * tensor1 * tensor2")
ceil_ = _writing("ceil", "the smallest integers that are not below its elements")
clamp_ = _writing("clamp", "its elements limited to [min, max]")
cos_ = _writing("cos", "the cosines of its elements")
div_ = _writing("div", "t / other")
atan_ = _writing("atan", "the arc tangents of its elements")
cumprod_ = _writing("cumprod", "its cumulative products along an axis")
cumsum_ = _writing("cumsum", "its cumulative sums along an axis")
exp_ = _writing("exp", "e to the power of its elements")
floor_ = _writing("floor", "the largest integers that are not above its elements")
lerp_ = _writing("lerp", "t + weight * (end - t)")
log_ = _writing("log", "the natural logarithms of its elements")
log2_ = _writing("log2", "the logarithms of its elements to base 2")
masked_fill_ = _writing("masked_fill", "t with a value wherever the mask is true")
nan_to_num_ = _writing("nan_to_num", "t with NaN and infinities replaced by numbers")
neg_ = _writing("neg", "-t")
pow_ = _writing("pow", "t ** exponent")
relu_ = _writing("relu", "max(t, 0)")
remainder_ = _writing("remainder", "t % other")
round_ = _writing("round", "the nearest integers, or numbers with so many decimals")
sigmoid_ = _writing("sigmoid", "1 / (1 + exp(-t))")
sin_ = _writing("sin", "the sines of its elements")
sqrt_ = _writing("sqrt", "the roots of its elements")
tanh_ = _writing("tanh", "the hyperbolic tangents of its elements")


def add_(t: Tensor, other: Any, *, alpha: Any = 1) -> Tensor:
    """Replaces t by t + alpha * other."""
    return t.__iadd__(scaled(t, other, alpha))


def sub_(t: Tensor, other: Any, *, alpha: Any = 1) -> Tensor:
    """Replaces t by t - alpha * other."""
    return t.__isub__(scaled(t, other, alpha))


def mul_(t: Tensor, other: Any) -> Tensor:
    """Replaces t by t * other."""
    return t.__imul__(other)


def clamp_min_(t: Tensor, min: Any) -> Tensor:
    """Replaces elements below `min` by it."""
    return clamp_(t, min=min)


def clamp_max_(t: Tensor, max: Any) -> Tensor:
    """Replaces elements above `max` by it."""
    return clamp_(t, max=max)


def fill_(t: Tensor, value: Any) -> Tensor:
    """Replaces all elements by one value."""
    t[...] = value
    return t


def zero_(t: Tensor) -> Tensor:
    """Replaces all elements by 0."""
    return fill_(t, 0)


def copy_(t: Tensor, source: Any, non_blocking: bool = False) -> Tensor:
    """Replaces the elements by those of another tensor, which is broadcast and converted."""
    is_elsewhere = isinstance(source, Tensor) and source.device is not t.device
    t[...] = source.to(t.device) if is_elsewhere else source
    return t


def fill_diagonal_(t: Tensor, fill_value: float, wrap: bool = False) -> Tensor:
    """Writes a value on the diagonal: at t[i, i], or t[i, i, i] and so on with more axes. With
    `wrap`, in a matrix with more rows than columns, the diagonal starts again in the first column,
    one row below the row after its end."""
    if t.ndim < 2 or (t.ndim > 2 and len({*t.shape}) > 1):
        raise ValueError(
            f"fill_diagonal_: shape {t.shape}: give a matrix, or more axes of equal lengths"
        )
    t.to_write(fill_value)
    xp, columns = xp_of(t._array), t.shape[-1]
    if t.ndim > 2:
        t[(xp.arange(columns),) * t.ndim] = fill_value
        return t
    rows = xp.arange(t.shape[0])
    place = rows % (columns + 1) if wrap else rows
    inside = place < columns
    t[rows[inside], place[inside]] = fill_value
    return t
