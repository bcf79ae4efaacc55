"""What to write instead of PyTorch's methods that tensors lack, and of NumPy's functions.

Functions of NumPy are refused on tensors where they would lose a gradient.
"""

from collections.abc import Callable
from typing import Any

from nnmpi.autograd.recording import recording

_WITHOUT_GRADIENT = {
    *("all", "allclose", "any", "argmax", "argmin", "argsort", "array_equal", "isclose", "ndim"),
    *("ones_like", "result_type", "shape", "size", "zeros_like"),
}
"""Functions of NumPy whose results have no gradient, so that none is lost."""

_FUNCTIONS = (
    *("cos", "exp", "expand_dims", "gelu", "log", "log_softmax", "maximum", "minimum", "relu"),
    *("sigmoid", "sin", "softmax", "sqrt", "swapaxes", "tanh", "where"),
)
_METHODS = (
    *("cumsum", "max", "mean", "min", "prod", "reshape", "squeeze", "std", "sum", "transpose"),
    "var",
)
_NO_HOOKS = "t.grad after backward(); there are no hooks"
_IN_PLACE = "t[...] = x under nnmpi.no_grad(), or make a new tensor"

_INSTEAD = {
    **{name: f"nnmpi.{name}(t)" for name in _FUNCTIONS},
    **{name: f"t.{name}()" for name in _METHODS},
    "abs": "abs(t)",
    "add": "a + b",
    "add_": "t += x, under nnmpi.no_grad() if t requires a gradient",
    "amax": "t.max()",
    "amin": "t.min()",
    "argmin": "(-t).argmax()",
    "bmm": "a @ b",
    "bool": "t.astype(bool)",
    "broadcast_to": "nnmpi.broadcast_to(t, shape)",
    "clamp": "nnmpi.clip(t, low, high)",
    "clip": "nnmpi.clip(t, low, high)",
    "clone": "t.copy()",
    "concatenate": "nnmpi.concatenate([a, b])",
    "copy_": _IN_PLACE,
    "cpu": "t.numpy()",
    "cuda": "model.to(on=nnmpi.backend.get('cuda')) and nnmpi.tensor(x, on=...)",
    "dim": "t.ndim",
    "div": "a / b",
    "dot": "the operator @",
    "double": "t.astype('float64')",
    "einsum": "nnmpi.einsum(equation, a, b)",
    "expand": "nnmpi.broadcast_to(t, shape)",
    "fill_": _IN_PLACE,
    "float": "t.astype('float32')",
    "hstack": "nnmpi.concatenate([a, b], axis=1)",
    "int": "t.astype('int32')",
    "is_leaf": "t.node is None",
    "long": "t.astype('int64')",
    "masked_fill": "nnmpi.where(mask, value, t)",
    "matmul": "a @ b",
    "mm": "a @ b",
    "mul": "a * b",
    "mul_": "t *= x, under nnmpi.no_grad() if t requires a gradient",
    "norm": "nnmpi.sqrt((t * t).sum())",
    "numel": "t.size",
    "pad": "nnmpi.pad(t, pad)",
    "permute": "t.transpose(2, 0, 1), with the same arguments",
    "pow": "t ** n",
    "ravel": "t.reshape(-1)",
    "register_hook": _NO_HOOKS,
    "requires_grad_": "t.requires_grad = True",
    "retain_grad": "loss.backward(until=t) for the gradient of t",
    "sort": "nnmpi.sort(t)",
    "split": "t.split(sizes)",
    "stack": "nnmpi.stack([a, b])",
    "sub": "a - b",
    "t": "t.T",
    "tile": "nnmpi.broadcast_to or nnmpi.concatenate",
    "topk": "nnmpi.topk(t, k)",
    "to": "t.astype(dtype), or model.to(dtype)",
    "tolist": "t.numpy().tolist()",
    "type": "t.astype(dtype)",
    "view": "t.reshape(-1), with the same arguments",
    "vstack": "nnmpi.concatenate([a, b])",
    "zero_": _IN_PLACE,
}
"""By the name of the method or function; t, a and b are tensors."""


def no_attribute(name: str) -> str:
    """The message for an attribute that a tensor does not have."""
    instead = f": write {_INSTEAD[name]}" if name in _INSTEAD else ""
    return f"a tensor has no attribute {name!r}{instead}"


def evaluate(function: Callable[..., Any], args: Any, options: Any, tensor: Any) -> Any:
    """NumPy's function of the values of all arguments of type `tensor`, in lists and tuples too."""
    name = f"{function.__module__}.{function.__name__}"
    refused = recording.get() and function.__name__ not in _WITHOUT_GRADIENT

    def values(v: Any) -> Any:
        if isinstance(v, list | tuple):
            return (list if isinstance(v, list) else tuple)(map(values, v))
        if not isinstance(v, tensor):
            return v
        if refused and v.requires_grad:
            raise TypeError(refusal(name))
        return v.numpy()

    return function(*values(args), **{key: values(v) for key, v in options.items()})


def refusal(name: str) -> str:
    """The message for a function of NumPy that would lose the gradient of a tensor."""
    others = "functions of nnmpi (concatenate, stack, where, ...), methods and operators of tensors"
    instead = _INSTEAD.get(name.rpartition(".")[2], others)
    return (
        f"{name} would lose the gradient of a tensor t that requires one: use {instead}, or "
        "t.numpy() or t.detach() for its values alone"
    )
