"""NumPy's functions called on tensors: refused where they would lose a gradient."""

from collections.abc import Callable
from typing import Any

from nnmpi.autograd.recording import recording

_WITHOUT_GRADIENT = {
    "all",
    "allclose",
    "any",
    "argmax",
    "argmin",
    "argsort",
    "array_equal",
    "isclose",
    "ndim",
    "ones_like",
    "result_type",
    "shape",
    "size",
    "zeros_like",
}
"""Functions whose results have no gradient, so that none is lost."""

_REPLACEMENTS = {
    "broadcast_to": "nnmpi.broadcast_to",
    "clip": "nnmpi.clip",
    "concatenate": "nnmpi.concatenate",
    "dot": "the operator @",
    "expand_dims": "nnmpi.expand_dims",
    "hstack": "nnmpi.concatenate",
    "max": "t.max()",
    "mean": "t.mean()",
    "min": "t.min()",
    "ravel": "t.reshape(-1)",
    "reshape": "t.reshape()",
    "stack": "nnmpi.stack",
    "sum": "t.sum()",
    "swapaxes": "nnmpi.swapaxes",
    "transpose": "t.transpose()",
    "var": "t.var()",
    "vstack": "nnmpi.concatenate",
    "where": "nnmpi.where",
}


def evaluate(function: Callable[..., Any], args: Any, options: Any, tensor: Any) -> Any:
    """The function on the values of all arguments of the type `tensor`, in lists and tuples too."""
    name = function.__name__
    refused = recording.get() and name not in _WITHOUT_GRADIENT

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
    return (
        f"numpy.{name} would lose the gradient of a tensor t that requires one: "
        f"use {_REPLACEMENTS.get(name, others)}, or t.numpy() or t.detach() for its values alone"
    )
