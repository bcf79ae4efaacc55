"""What adapters.py may read: names in its source, built-in functions, and modules without those
that they import.

This keeps honest students honest. What holds against the others is that a grader reads only values
from the process in which all this is.
"""

import ast
import builtins
import sys
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any, NoReturn

OPEN = (
    "__future__",
    "bisect",
    "collections",
    "contextlib",
    "dataclasses",
    "enum",
    "fractions",
    "functools",
    "heapq",
    "itertools",
    "math",
    "numpy",
    "operator",
    "time",
    "typing",
)
"""The packages that any adapters may import."""

CLOSED = ("numpy.ctypeslib", "numpy.distutils", "numpy.f2py", "numpy.testing")
"""Parts of these that run code from texts, or a compiler."""

UNSAFE = {
    "operator": ("attrgetter", "methodcaller"),  # read attributes by texts
    "typing": ("ForwardRef", "evaluate_forward_ref", "get_type_hints"),  # run annotations
    "builtins": ("breakpoint", "compile", "eval", "exec", "help", "input", "open"),
    "numpy": (
        *("DataSource", "fromfile", "fromregex", "genfromtxt", "load", "loadtxt", "memmap"),
        *("NpzFile", "open_memmap", "read_array", "save", "savetxt", "savez", "savez_compressed"),
    ),
}
"""Names of open packages that run texts, or read and write files, which may be code too."""

FRAMES = (
    *("ag_frame", "cr_frame", "gi_frame", "tb_frame"),
    *("f_back", "f_builtins", "f_globals", "f_locals"),
)
"""Attributes that lead from a generator or an error to the variables of other functions."""

CLOSED_ATTRIBUTES = ("ctypes", "dump", "tofile")
"""Attributes of arrays that lead to memory and files."""

LOADERS = ("__loader__", "__spec__")
"""Names among the built-in functions of what loads any module."""

HARMLESS = ("__class__", "__doc__", "__init__", "__module__", "__name__", "__qualname__")
ON_SELF = ("self", "cls")


class HiddenError(ImportError):
    """Adapters use what they are meant to write, or what nobody should touch."""


def private_reads(tree: ast.AST) -> Iterator[str]:
    """Yields "line 3 reads comm._isend" for each read of an attribute that is not for students."""
    own = {*_own_attributes(tree)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            if is_private(node.attr, _is_of_self(node) or node.attr in own):
                yield f"line {node.lineno} reads {ast.unparse(node)}"
        elif isinstance(node, ast.Name) and node.id in ("__builtins__", "__import__"):
            yield f"line {node.lineno} reads {node.id}"
        elif isinstance(node, ast.MatchClass):
            for name in filter(is_private, node.kwd_attrs):
                yield f"line {node.cls.lineno} reads {name}"


def _is_of_self(node: ast.Attribute) -> bool:
    return isinstance(node.value, ast.Name) and node.value.id in ON_SELF


def _own_attributes(tree: ast.AST) -> Iterator[str]:
    """Yields the attributes and methods that classes of a source give their objects."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield from [node.attr] * _is_of_self(node)
        for part in node.body if isinstance(node, ast.ClassDef) else ():
            if isinstance(part, ast.FunctionDef):
                yield part.name
            elif isinstance(part, ast.AnnAssign) and isinstance(part.target, ast.Name):
                yield part.target.id


def is_private(name: str, is_own: bool = False) -> bool:
    """True for a private attribute; adapters may read their own with one underscore."""
    if name in FRAMES or name in CLOSED_ATTRIBUTES:
        return True
    own = is_own and not (name.startswith("__") and name.endswith("__"))
    return name.startswith("_") and name not in HARMLESS and not own


class _Shown(ModuleType):
    """An open module as adapters see it: its public names, without modules of other packages."""

    def __init__(self, module: ModuleType) -> None:
        super().__init__(module.__name__, module.__doc__)
        names = getattr(module, "__all__", dir(module))
        self.__all__ = sorted(name for name in names if _is_shown(module, name))

    def __getattr__(self, name: str) -> Any:
        module = sys.modules[self.__name__]  # no attribute of this object leads to it
        if name.startswith("_") or not hasattr(module, name):
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")
        if not _is_shown(module, name):
            raise HiddenError(f"{self.__name__}.{name} is refused")
        value = getattr(module, name)
        setattr(self, name, shown_module(value) if isinstance(value, ModuleType) else value)
        return self.__dict__[name]


_shown: dict[str, ModuleType] = {}


def shown_module(module: ModuleType) -> ModuleType:
    """An open module as adapters see it."""
    if module.__name__ not in _shown:
        _shown[module.__name__] = _Shown(module)
    return _shown[module.__name__]


def _is_shown(module: ModuleType, name: str) -> bool:
    unsafe = UNSAFE.get(module.__name__.partition(".")[0], ())
    if name.startswith("_") or name in unsafe or not is_open(f"{module.__name__}.{name}"):
        return False
    value = getattr(module, name)
    return not isinstance(value, ModuleType) or is_open(value.__name__)


def is_open(name: str) -> bool:
    """True if adapters may import the module of this name."""
    is_part = any(part.startswith("_") for part in name.split(".")[1:])
    return name.partition(".")[0] in OPEN and not is_part and not name.startswith(CLOSED)


def shown_builtins(imported: Callable[..., Any]) -> dict[str, Any]:
    """The built-in functions, without those that run texts or open files."""

    def refused(name: str) -> Callable[..., NoReturn]:
        def refuse(*_: Any, **__: Any) -> NoReturn:
            raise HiddenError(f"{name} is refused")

        return refuse

    def public(owner: Any, name: str, *default: Any) -> Any:
        if is_private(str.__str__(name)):
            raise HiddenError(f"getattr of {name} is refused")
        return getattr(owner, name, *default)

    closed = {name: refused(name) for name in UNSAFE["builtins"]}
    shown = {name: value for name, value in vars(builtins).items() if name not in LOADERS}
    return {**shown, **closed, "getattr": public, "__import__": imported}
