"""NumPy's functions and ufuncs on the values of tensors; refused where a gradient would be lost."""

from collections.abc import Callable
from typing import Any

from nnmpi.autograd.recording import recording

_WITHOUT_GRADIENT = {
    *("all", "allclose", "any", "argmax", "argmin", "argsort", "array_equal", "isclose", "ndim"),
    *("ones_like", "result_type", "shape", "size", "zeros_like"),
}
"""NumPy functions whose results have no gradient, so that none can be lost."""


def evaluate(function: Callable[..., Any], args: Any, options: Any, tensor: Any) -> Any:
    """Calls a NumPy function with the arrays of all tensors in its arguments (`values_of`)."""
    name = f"{function.__module__}.{function.__name__}"
    args, options = values_of((args, options), function.__name__, name, tensor)
    return function(*args, **options)


def values_of(value: Any, function: str, name: str, tensor: Any) -> Any:
    """Returns an argument of a NumPy function, or a list, tuple or dict of them, with tensors
    replaced by arrays; raises TypeError, which names `name`, if a gradient would be lost."""
    if isinstance(value, list | tuple):
        parts = [values_of(v, function, name, tensor) for v in value]
        return parts if isinstance(value, list) else tuple(parts)
    if isinstance(value, dict):
        return {key: values_of(v, function, name, tensor) for key, v in value.items()}
    if not isinstance(value, tensor):
        return value
    value.renew()
    if value.requires_grad and recording.get() and function not in _WITHOUT_GRADIENT:
        raise TypeError(refusal(name))
    return value.numpy()


REFLECTED = {
    "add": "__radd__",
    "subtract": "__rsub__",
    "multiply": "__rmul__",
    "divide": "__rtruediv__",
    "floor_divide": "__rfloordiv__",
    "remainder": "__rmod__",
    "power": "__rpow__",
    "matmul": "__rmatmul__",
    "bitwise_and": "__rand__",
    "bitwise_or": "__ror__",
    "bitwise_xor": "__rxor__",
    "equal": "__eq__",
    "not_equal": "__ne__",
    "less": "__gt__",
    "less_equal": "__ge__",
    "greater": "__lt__",
    "greater_equal": "__le__",
}
"""The method of a tensor for an operator of NumPy's, whose left operand is an array."""


def evaluate_ufunc(ufunc: Any, method: str, inputs: Any, options: Any, tensor: Any) -> Any:
    """Calls a NumPy ufunc, or its method such as "reduce", with the values of tensors; array + t or
    array += t becomes the tensor's own op if it returns a new array or needs a gradient."""
    left, right = inputs[0], inputs[-1]
    if method == "__call__" and ufunc.__name__ in REFLECTED and not isinstance(left, tensor):
        needs = right.requires_grad and recording.get()
        if not options or (needs and options.get("out", ())[0] is left):
            return getattr(right, REFLECTED[ufunc.__name__])(left)
    written = [t for t in options.get("out", ()) if isinstance(t, tensor)]
    for t in written:
        t.to_write(0)
    name = f"numpy.{ufunc.__name__}"
    inputs, options = values_of((inputs, options), ufunc.__name__, name, tensor)
    y = getattr(ufunc, method)(*inputs, **options)
    for t in written:
        t.mark_written()
    return written[0] if written else y


_INSTEAD = {
    **{
        name: f"nnmpi.{name}"
        for name in (
            *("broadcast_to", "clip", "concatenate", "einsum", "expand_dims", "pad", "sort"),
            *("stack", "swapaxes", "where"),
        )
    },
    **{
        name: f"t.{name}()"
        for name in (
            *("amax", "amin", "argmin", "cumsum", "max", "mean", "min", "prod", "reshape", "split"),
            *("squeeze", "std", "sum", "transpose", "var"),
        )
    },
    **dict.fromkeys(("append", "hstack", "vstack"), "nnmpi.concatenate"),
    **dict.fromkeys(("dot", "inner"), "the operator @"),
    **dict.fromkeys(("repeat", "tile"), "nnmpi.broadcast_to or nnmpi.concatenate"),
    "norm": "nnmpi.sqrt((t * t).sum())",
    "ravel": "t.reshape(-1)",
}
"""The replacements of NumPy's functions, by name."""


def refusal(name: str) -> str:
    """The error message for a NumPy function that would lose the gradient of a tensor."""
    advice = "functions of nnmpi (concatenate, stack, where, ...), methods and operators of tensors"
    return (
        f"{name} would lose the gradient of a tensor t that requires one: use "
        f"{_INSTEAD.get(name.rpartition('.')[2], advice)}, or t.numpy() or t.detach() for its "
        "values alone"
    )
