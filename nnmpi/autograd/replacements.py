"""Advice on replacements for names of PyTorch and NumPy that nnmpi does not have: functions,
methods and modules.

NumPy functions are refused on tensors where they would lose a gradient.
"""

import re
import sys
from collections.abc import Callable
from functools import cache
from importlib.abc import Loader
from importlib.machinery import ModuleSpec
from itertools import chain
from pathlib import Path
from types import ModuleType
from typing import Any, NoReturn

import numpy as np

from nnmpi.arrays import dtypes
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
    name: np.dtype(_ALIASES.get(name, name)) for name in (*_ALIASES, *_ALIASES.values(), *_OTHERS)
}
"""NumPy's dtypes by PyTorch's names, but for bfloat16: `t.dtype is nnmpi.long`."""


def dtype_named(name: str) -> Any:
    """NumPy's dtype of this name in PyTorch, or None; it loads ml_dtypes for bfloat16."""
    return dtypes.named(name) if name == "bfloat16" else TYPES.get(name)


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


def instead(name: str, *sections: str) -> str:
    """Text to append to an error message about a missing name: a colon and advice on a replacement,
    which is looked up in the given sections of `replacements.txt`; empty if there is none."""
    if name.startswith("__"):  # Python and NumPy probe for such names often
        return ""
    for pattern, sentence in chain(*(_rows()[section] for section in sections)):
        if re.fullmatch(pattern, name):
            return f": {sentence.format(name=name)}"
    if sections[-1] == "functions and methods" and hasattr(np, name):
        return f": write numpy.{name}" + _OF_VALUES * callable(getattr(np, name))
    return ""


def no_attribute(name: str) -> str:
    """The error message for an attribute that tensors do not have, with advice if there is any."""
    return f"a tensor has no attribute {name!r}{instead(name, 'functions and methods')}"


def no_name(package: str, name: str, *kinds: str) -> str:
    """The message for a name that a package lacks, with advice if `replacements.txt` has any."""
    return f"{package} has no {name!r}{instead(name, *kinds)}"


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


def refusal(name: str) -> str:
    """The error message for a NumPy function that would lose the gradient of a tensor."""
    advice = "functions of nnmpi (concatenate, stack, where, ...), methods and operators of tensors"
    replacement = instead(name.rpartition(".")[2], "numpy").removeprefix(": ") or advice
    return (
        f"{name} would lose the gradient of a tensor t that requires one: use {replacement}, or "
        "t.numpy() or t.detach() for its values alone"
    )


def missing(message: str) -> Exception:
    """The error of a module's `__getattr__` for a name that it does not have: an ImportError for
    `from module import name`, since Python replaces the message of an AttributeError there."""
    from opcode import opmap  # rarely

    asking = sys._getframe(2)
    is_import = asking.f_code.co_code[asking.f_lasti] == opmap["IMPORT_FROM"]
    return (ImportError if is_import else AttributeError)(message)


def refuser(package: str, *kinds: str) -> Callable[[str], NoReturn]:
    """Returns the `__getattr__` of a module that has all its names in itself: it raises the error
    for another one, with advice from the sections `kinds` of `replacements.txt`."""

    def refused(name: str) -> NoReturn:
        raise missing(no_name(package, name, *kinds))

    return refused


# ---- modules of PyTorch, such as nnmpi.nn.modules.conv and nnmpi.fft

ABSENT = str(Path(__file__).with_suffix(".txt"))
"""The last entry of the `__path__` of nnmpi's packages: Python asks its finder only for modules in
them that are not in their folders. A finder in `sys.meta_path` would be asked for all others too.
"""


class _Finder:
    """Finds modules of PyTorch whose names are in their package; says what to write for others."""

    def find_spec(self, fullname: str, target: ModuleType | None = None) -> ModuleSpec | None:
        """Returns how to load a module with the names of its package. Raises ModuleNotFoundError
        with advice for another one; returns None, for Python's own error, if there is none."""
        package, _, name = fullname.rpartition(".")
        path = fullname.partition(".")[2]
        known = vars(sys.modules[package]).get("_PACKAGES", ())  # to ask for one imports it
        if name in known or any(Path(p, name).is_dir() for p in sys.modules[package].__path__):
            return None  # a folder without __init__.py, such as tokenize
        if instead(path, "modules with the names of their package"):
            spec = ModuleSpec(fullname, _NamesOfPackage(), is_package=True)
            spec.submodule_search_locations = [ABSENT]
            return spec
        if not (advice := instead(path, "modules") or _advice_of(package, name)):
            return None
        raise ModuleNotFoundError(f"No module named {fullname!r}{advice}", name=fullname)


class _NamesOfPackage(Loader):
    """Loads a module that has the names of its package, and says what that says of other names."""

    def exec_module(self, module: ModuleType) -> None:
        """Gives a new module the names."""
        package = sys.modules[module.__name__.rpartition(".")[0]]
        vars(module).update({**vars(package), **vars(module)})  # __name__, __path__: its own


def _advice_of(package: str, name: str) -> str:
    """Returns a colon and what a package says of a name that is no module in it."""
    try:
        getattr(sys.modules[package], name)
    except AttributeError as error:
        _, colon, advice = str(error).partition(": ")
        return colon + advice
    return f": it is no module here, write from {package} import {name}"


sys.path_importer_cache[ABSENT] = _Finder()  # where Python keeps the finder of each path
