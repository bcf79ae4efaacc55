"""Which of NumPy's functions may be called on a tensor that requires a gradient."""

WITHOUT_GRADIENT = {
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


def refusal(name: str) -> str:
    """The message for a function of NumPy that would lose the gradient of a tensor."""
    others = "functions of nnmpi (concatenate, stack, where, ...), methods and operators of tensors"
    return (
        f"numpy.{name} would lose the gradient of a tensor t that requires one: "
        f"use {_REPLACEMENTS.get(name, others)}, or t.numpy() or t.detach() for its values alone"
    )
