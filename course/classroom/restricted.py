"""What adapters.py may read: names in its source, built-in functions, and modules without those
that they import.

This keeps honest students honest. What holds against the others is that a grader reads only values
from the process in which all this is.
"""

import ast
import builtins
import dataclasses
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
    "contextlib": ("redirect_stderr", "redirect_stdout"),  # replace any attribute of sys
    "dataclasses": ("make_dataclass",),  # runs names of fields, in the module types
    "enum": ("global_enum", "global_enum_repr", "global_flag_repr", "global_str"),  # write modules
    "functools": (
        *("singledispatch", "singledispatchmethod"),  # run annotations
        *("update_wrapper", "wraps"),  # read attributes by texts
    ),
    "operator": ("attrgetter", "methodcaller"),  # read attributes by texts
    "typing": ("ForwardRef", "evaluate_forward_ref", "get_type_hints"),  # run annotations
    "builtins": ("breakpoint", "compile", "eval", "exec", "help", "input", "open", "vars"),
    "numpy": (
        *("DataSource", "fromfile", "fromregex", "genfromtxt", "load", "loadtxt", "memmap"),
        *("NpzFile", "open_memmap", "read_array", "save", "savetxt", "savez", "savez_compressed"),
        *("info", "recfromcsv", "recfromtxt", "test"),
    ),
}
"""Names of open packages that run texts, or read and write files, which may be code too."""

FRAMES = (
    *("ag_frame", "cr_frame", "gi_frame", "tb_frame"),
    *("ag_code", "cr_code", "f_code", "gi_code"),
    *("f_back", "f_builtins", "f_globals", "f_locals"),
)
"""Attributes that lead from a generator or an error to the variables of other functions, or to code
that can be changed."""

CLOSED_ATTRIBUTES = ("_evaluate", "ctypes", "dump", "tofile")
"""Attributes of arrays that lead to memory and files, and of annotations that run them."""

CLOSED_NAMES = (
    *("__annotations__", "__dataclass_fields__", "__match_args__", "__module__"),
    *("__builtins__", "__import__"),
)
"""Names by which a class runs texts or reads attributes, and by which modules are imported."""

GENERATED = ("__delattr__", "__setattr__")
"""Private attributes in the code that dataclasses make."""

LOADERS = ("__loader__", "__spec__")
"""Names among the built-in functions of what loads any module."""

ADAPTERS = "adapters"
"""The name of the module of adapters.py."""

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
        elif isinstance(node, ast.Name) and node.id in CLOSED_NAMES:
            yield f"line {node.lineno} reads {node.id}"
        elif isinstance(node, ast.MatchClass):
            for name in filter(is_private, node.kwd_attrs):
                yield f"line {node.cls.lineno} reads {name}"
            if node.patterns:  # of attributes that the class names in __match_args__
                yield f"line {node.cls.lineno} reads attributes of {ast.unparse(node.cls)} by place"


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
    own = is_own and not name.endswith("_")  # those are Python's, as __x__, or enum's, as _x_
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
        value = dataclass if name == "dataclass" else getattr(module, name)
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


# ---- dataclasses, which run a text that they make of the names of fields


def dataclass(cls: Any = None, /, **options: Any) -> Any:
    """`dataclasses.dataclass` for classes of adapters.py: it runs code in the module that a class
    names as its own."""

    def made(cls: Any) -> Any:
        if type(cls) is not type or type(cls.__module__) is not str or cls.__module__ != ADAPTERS:
            raise HiddenError(
                "dataclass of a class of another module, or of a metaclass, is refused"
            )
        return dataclasses.dataclass(cls, **options)

    return made if cls is None else made(cls)


def run_generated(text: str, *namespaces: Any) -> None:
    """Runs the code that a dataclass makes; raises HiddenError if a name of a field in it reads
    what adapters may not read."""
    for node in ast.walk(ast.parse(text)):
        name = str(getattr(node, "attr", getattr(node, "id", "")))
        is_closed = isinstance(node, ast.Attribute) and is_private(name, is_own=True)
        if (is_closed and name not in GENERATED) or name in CLOSED_NAMES:
            raise HiddenError(f"a field of a dataclass that reads {name} is refused")
    exec(text, *namespaces)


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
