"""Values that the code of a recorded pass or step may use: functions and classes that read and
change only their arguments, and objects of users all of whose attributes can be compared."""

from abc import ABCMeta
from enum import Enum
from functools import partial
from itertools import chain
from types import BuiltinFunctionType, FunctionType, ModuleType
from typing import Any

import numpy as np

from nnmpi import autograd
from nnmpi.addons import ADD_ONS
from nnmpi.autograd import Tensor
from nnmpi.autograd.torch_names import METHODS_ON_USE
from nnmpi.nn.module import Module
from nnmpi.nn.users_code import MISSING, is_own

CLASSES = {
    bool, complex, dict, enumerate, filter, float, frozenset, int, list, map, np.dtype, partial,
    range, reversed, set, slice, str, Tensor, tuple, zip,
}  # fmt: skip
"""Classes that the code may use."""

FUNCTIONS = {
    abs, all, any, divmod, isinstance, iter, len, max, min, next, pow, round, sorted, sum,
    np.arange, np.eye, np.full, np.identity, np.ones, np.zeros,
}  # fmt: skip
"""Functions that code may use besides `math`, `operator`, NumPy's and nnmpi's own."""

OF_MODULES = {callable, getattr, hasattr, issubclass, super, type}
"""Further names that methods may use: all attributes of a module and its class are compared."""

LIBRARIES = {"math", "_operator", "_functools"}

OWN = (autograd.__name__, "nnmpi.nn", *chain.from_iterable(a.of_step for a in ADD_ONS.values()))
"""Modules whose functions change nothing but their arguments."""

OF_CLASSES = (
    autograd.__name__,
    *chain.from_iterable(a.classes_of_step for a in ADD_ONS.values()),
)
"""Modules whose classes a recorded step may use."""

STATEFUL = {f"nnmpi.nn.{name}" for name in ("seeding", "tensor_files")}
"""Modules of nnmpi whose functions read or set state that a replay would miss."""

FILES = {"save", "savetxt", "savez", "savez_compressed"}

IMMUTABLE = 1 << 8
"""The flag of classes that are written in C."""

UNSEEN = {
    "base", "ctypes", "flags", "imag", "load_state_dict", "passes", "seed", "setflags",
    "state_dict",
}  # fmt: skip
"""Attributes by which code could read or change state without notice."""

_TYPES = Tensor, Module, np.ndarray, np.ufunc, str, complex, tuple, list, dict, set, slice, range

PUBLIC = {name for kind in _TYPES for name in dir(kind) if name[0] != "_"} - UNSEEN
PUBLIC |= METHODS_ON_USE.keys()
"""Attributes that code may read of a value of any type."""


def is_namespace(value: Any) -> bool:
    """True for a user's class, or an object whose attributes all are in its `__dict__` and in
    users' classes: changes are noticed."""
    is_class = isinstance(value, type)
    *classes, last = (value if is_class else type(value)).__mro__
    return last is object and bool(classes) and all(map(_is_simple, classes))


class _Simple:
    """An empty class: one with larger objects has fields in C, whose changes go unnoticed."""


def _is_simple(cls: type) -> bool:
    special = {"__getattr__", "__getattribute__"}
    is_of_python = type(cls) in (type, ABCMeta) and not cls.__flags__ & IMMUTABLE
    fields = vars(cls).get("__slots__")
    fits = cls.__basicsize__ in (_Simple.__basicsize__, object.__basicsize__)
    is_open = not fields and special.isdisjoint(vars(cls))
    return is_of_python and fits and is_open and not is_own(cls)


def is_known(value: Any) -> bool:
    """True for a function or class that the code may call or use, since it changes nothing but its
    arguments; also True for MISSING, the constant that stands for a variable without a value."""
    if value is MISSING or not callable(value):
        return value is MISSING
    where = getattr(value, "__module__", None) or ""
    if isinstance(value, type):
        known = value in CLASSES or issubclass(value, np.generic | BaseException)
        return known or where == "itertools" or (is_own(value) and _is_of_step(value))
    if isinstance(value, FunctionType) and is_own(value):
        return where.startswith(OWN) and where not in STATEFUL
    if isinstance(value, BuiltinFunctionType) and isinstance(value.__self__, ModuleType):
        return value.__self__.__name__ in LIBRARIES or value in FUNCTIONS
    if type(value) is type(np.mean):  # a function of arrays
        return value.__name__ not in FILES
    return isinstance(value, np.ufunc) or (isinstance(value, FunctionType) and value in FUNCTIONS)


def is_of_modules(value: Any) -> bool:
    """True for a function or class that methods of modules may use, besides those of any code."""
    return isinstance(value, BuiltinFunctionType | type) and value in OF_MODULES


def _is_of_step(cls: type) -> bool:
    return issubclass(cls, Module) or cls.__module__.startswith(OF_CLASSES)


def fixed_attribute(value: Any, name: str) -> Any:
    """Returns the attribute `name` of a value whose attributes of this name never change: a field
    of a named tuple, a member of an Enum, or its name and value. MISSING if there is none."""
    if isinstance(value, type):
        is_member = issubclass(value, Enum) and name in value.__members__
        return value.__members__[name] if is_member else MISSING  # type: ignore[attr-defined]
    fields = ("name", "value") if isinstance(value, Enum) else getattr(type(value), "_fields", ())
    return getattr(value, name) if name in fields else MISSING


def is_fixed(value: Any) -> bool:
    """True for an Enum, a member of one, and a named tuple."""
    is_enum = isinstance(value, Enum) or (isinstance(value, type) and issubclass(value, Enum))
    return is_enum or (isinstance(value, tuple) and hasattr(type(value), "_fields"))


def kind_of(value: Any) -> str:
    """Returns a description of a value's type, such as "a list", as text for an error message."""
    if isinstance(value, ModuleType):
        return f"the module {value.__name__}"
    if isinstance(value, type):
        return f"the class {value.__name__}"
    return f"a {type(value).__name__}"
