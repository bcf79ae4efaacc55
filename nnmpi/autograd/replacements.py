"""Advice on replacements for functions and methods of PyTorch and NumPy that nnmpi does not have.

NumPy functions are refused on tensors where they would lose a gradient.
"""

import re
from collections.abc import Callable
from functools import cache
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from nnmpi.autograd.recording import recording

_WITHOUT_GRADIENT = {
    *("all", "allclose", "any", "argmax", "argmin", "argsort", "array_equal", "isclose", "ndim"),
    *("ones_like", "result_type", "shape", "size", "zeros_like"),
}
"""NumPy functions whose results have no gradient, so that none can be lost."""

_OF_VALUES = " of t.numpy(), for values without a gradient"
_ALIASES = {
    "half": "float16",
    "float": "float32",
    "double": "float64",
    "int": "int32",
    "long": "int64",
}
_OTHERS = ("bool", "short", "int8", "int16", "uint8", "uint16", "uint32", "uint64")
TYPES = {
    name: np.dtype(_ALIASES.get(name, name)).type
    for name in (*_ALIASES, *_ALIASES.values(), *_OTHERS)
}
"""NumPy's scalar types, by PyTorch's names."""


@cache
def _rows() -> dict[str, list[tuple[str, str]]]:
    """The rows of `replacements.txt`, (pattern of names, sentence), by section."""
    text = Path(__file__).with_suffix(".txt").read_text(encoding="utf-8")
    rows: dict[str, list[tuple[str, str]]] = {}
    for block in text.split("\n\n"):
        sentence, *names = block.splitlines()
        if sentence.startswith("== "):
            section = rows.setdefault(sentence[3:], [])
        elif names and rows:
            section.append(("|".join(" ".join(names).split()), sentence))
    return rows


def _instead(name: str, *sections: str) -> str:
    """A colon and the advice for a missing name, looked up in the given sections; empty if there is
    none."""
    if name.startswith("_"):  # Python and NumPy probe for such names often
        return ""
    for pattern, sentence in chain(*(_rows()[section] for section in sections)):
        if re.fullmatch(pattern, name):
            return f": {sentence.format(name=name)}"
    if sections[-1] == "functions and methods" and hasattr(np, name):
        return f": write numpy.{name}" + _OF_VALUES * callable(getattr(np, name))
    return ""


def no_attribute(name: str) -> str:
    """The error message for an attribute that tensors do not have, with advice if there is any."""
    return f"a tensor has no attribute {name!r}{_instead(name, 'functions and methods')}"


def no_name(package: str, name: str, *kinds: str) -> str:
    """The error message for a name that a package does not have; advice comes from the sections
    `kinds`."""
    return f"{package} has no {name!r}{_instead(name, *kinds)}"


def evaluate(function: Callable[..., Any], args: Any, options: Any, tensor: Any) -> Any:
    """Calls a NumPy function with the values of all arguments of type `tensor`, also those in lists
    and tuples; raises TypeError if a gradient would be lost."""
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
    """The error message for a NumPy function that would lose the gradient of a tensor."""
    advice = "functions of nnmpi (concatenate, stack, where, ...), methods and operators of tensors"
    instead = _instead(name.rpartition(".")[2], "numpy").removeprefix(": ") or advice
    return (
        f"{name} would lose the gradient of a tensor t that requires one: use {instead}, or "
        "t.numpy() or t.detach() for its values alone"
    )
