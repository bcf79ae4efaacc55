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
    "numpy.amax": "t.max()",
    "numpy.amin": "t.min()",
    "numpy.broadcast_to": "nnmpi.broadcast_to",
    "numpy.clip": "nnmpi.clip",
    "numpy.concatenate": "nnmpi.concatenate",
    "numpy.cumsum": "t.cumsum()",
    "numpy.dot": "the operator @",
    "numpy.einsum": "the operator @ and methods such as t.transpose() and t.sum()",
    "numpy.expand_dims": "nnmpi.expand_dims",
    "numpy.hstack": "nnmpi.concatenate",
    "numpy.linalg.norm": "nnmpi.sqrt((t * t).sum())",
    "numpy.max": "t.max()",
    "numpy.mean": "t.mean()",
    "numpy.min": "t.min()",
    "numpy.prod": "t.prod()",
    "numpy.ravel": "t.reshape(-1)",
    "numpy.reshape": "t.reshape()",
    "numpy.split": "t.split(sizes)",
    "numpy.squeeze": "t.squeeze()",
    "numpy.stack": "nnmpi.stack",
    "numpy.std": "t.std()",
    "numpy.sum": "t.sum()",
    "numpy.swapaxes": "nnmpi.swapaxes",
    "numpy.tile": "nnmpi.broadcast_to or nnmpi.concatenate",
    "numpy.transpose": "t.transpose()",
    "numpy.var": "t.var()",
    "numpy.vstack": "nnmpi.concatenate",
    "numpy.where": "nnmpi.where",
}


def evaluate(function: Callable[..., Any], args: Any, options: Any, tensor: Any) -> Any:
    """The function on the values of all arguments of the type `tensor`, in lists and tuples too."""
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
    return (
        f"{name} would lose the gradient of a tensor t that requires one: "
        f"use {_REPLACEMENTS.get(name, others)}, or t.numpy() or t.detach() for its values alone"
    )
