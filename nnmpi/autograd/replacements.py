"""What to write instead of PyTorch's methods and functions that are missing, and of NumPy's.

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

_TO_DEVICE = "nnmpi.tensor(x, device='cuda'), and model.to(on=nnmpi.backend.get('cuda'))"
_DATA = "nnmpi.Trainer(config, build, data=(x, y)) for a DataLoader, or take rows: x[i:j]"
_RANDOM = "nnmpi.tensor(rng.{}), rng = numpy.random.default_rng(seed); in forward, nnmpi.random"
_TYPE = "numpy.{0} or '{0}': types are NumPy's"

_ALIASES = {
    "half": "float16",
    "float": "float32",
    "double": "float64",
    "int": "int32",
    "long": "int64",
}
_TYPES = {**{name: name for name in _ALIASES.values()}, **_ALIASES}
"""NumPy's types by PyTorch's names."""

_INSTEAD = {
    **{name: f"nnmpi.{name}(t)" for name in _FUNCTIONS},
    **{name: f"t.{name}()" for name in _METHODS},
    **{name: f"t.astype('{kind}')" for name, kind in _ALIASES.items()},
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
    "chunk": "nnmpi.split(t, sizes)",
    "clone": "t.copy()",
    "concatenate": "nnmpi.concatenate([a, b])",
    "copy_": _IN_PLACE,
    "contiguous": "t itself: no method needs it; t.copy() for other memory",
    "cpu": "t.numpy()",
    "cuda": _TO_DEVICE,
    "device": "nnmpi.backend.of(t.data).name",
    "dim": "t.ndim",
    "div": "a / b",
    "dot": "the operator @",
    "einsum": "nnmpi.einsum(equation, a, b)",
    "eq": "a == b",
    "expand": "nnmpi.broadcast_to(t, shape)",
    "fill_": _IN_PLACE,
    "hstack": "nnmpi.concatenate([a, b], axis=1)",
    "indices": "t.argmax(axis): t.max(axis) returns values alone",
    "is_leaf": "t.node is None",
    "masked_fill": "nnmpi.where(mask, value, t)",
    "matmul": "a @ b",
    "mm": "a @ b",
    "mul": "a * b",
    "mul_": "t *= x, under nnmpi.no_grad() if t requires a gradient",
    "norm": "nnmpi.sqrt((t * t).sum())",
    "pad": "nnmpi.pad(t, pad)",
    "pow": "t ** n",
    "ravel": "t.reshape(-1)",
    "register_hook": _NO_HOOKS,
    "repeat": "nnmpi.broadcast_to or nnmpi.concatenate",
    "requires_grad_": "t.requires_grad = True",
    "retain_grad": "loss.backward(until=t) for the gradient of t",
    "sort": "nnmpi.sort(t)",
    "split": "t.split(sizes)",
    "stack": "nnmpi.stack([a, b])",
    "sub": "a - b",
    "t": "t.T",
    "tile": "nnmpi.broadcast_to or nnmpi.concatenate",
    "topk": "nnmpi.topk(t, k)",
    "to": f"t.astype(dtype) for a type; for a device {_TO_DEVICE}",
    "tolist": "t.numpy().tolist()",
    "type": "t.astype(dtype)",
    "values": "t.max(axis) itself, which returns values alone, and t.argmax(axis) for their places",
    "view_as": "t.view(other.shape)",
    "vstack": "nnmpi.concatenate([a, b])",
    "zero_": _IN_PLACE,
}
"""By the name of the method or function; t, a and b are tensors."""


_INSTEAD_OF_FUNCTIONS = {
    **_INSTEAD,
    **{name: _TYPE.format(kind) for name, kind in _TYPES.items()},
    "DataLoader": _DATA,
    "arange": "nnmpi.tensor(numpy.arange(n))",
    "as_tensor": "nnmpi.from_numpy(array), or nnmpi.tensor(x), which copies",
    "eye": "nnmpi.tensor(numpy.eye(n, dtype='float32'))",
    "full_like": "nnmpi.full(t.shape, value, dtype=t.dtype)",
    "inference_mode": "nnmpi.no_grad()",
    "linspace": "nnmpi.tensor(numpy.linspace(a, b, n, dtype='float32'))",
    "max": "t.max(), and nnmpi.maximum(a, b) of two tensors",
    "min": "t.min(), and nnmpi.minimum(a, b) of two tensors",
    "ones_like": "nnmpi.ones(t.shape, dtype=t.dtype)",
    "permute": "t.permute(dims)",
    "rand": _RANDOM.format("random(shape, 'float32')"),
    "randint": _RANDOM.format("integers(low, high, shape)"),
    "randn": _RANDOM.format("standard_normal(shape, 'float32')"),
    "randperm": "rng.permutation(n), rng = numpy.random.default_rng(seed)",
    "reshape": "t.reshape(shape)",
    "set_grad_enabled": "nnmpi.no_grad()",
    "transpose": "nnmpi.swapaxes(t, i, j) for two axes, t.transpose(order) for all",
    "utils": _DATA,
    "zeros_like": "nnmpi.zeros(t.shape, dtype=t.dtype)",
}
"""By the name of PyTorch's function."""


def no_attribute(name: str) -> str:
    """The message for an attribute that a tensor does not have."""
    instead = f": write {_INSTEAD[name]}" if name in _INSTEAD else ""
    return f"a tensor has no attribute {name!r}{instead}"


def no_function(name: str) -> str:
    """The message for a name that nnmpi does not have."""
    instead = _INSTEAD_OF_FUNCTIONS.get(name)
    return f"nnmpi has no {name!r}" + (f": write {instead}" if instead else "")


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
