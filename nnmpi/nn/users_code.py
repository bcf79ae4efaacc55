"""Finds out whether modules and functions of users can be part of a recorded pass, and which values
they read.

A recorded pass is replayed as long as the values that this code reads are the same. Before each
pass they are compared: attributes of modules, by a counter of assignments; attributes of classes;
global variables, and variables of closures. A value that can change without an assignment, such as
a list, is refused. An attribute that is set by `vars(module)[name] = value` is not noticed.
"""

import dis
import random
import types
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from enum import Enum
from functools import partial
from operator import is_
from typing import Any

import numpy as np

from nnmpi.nn.module import Module
from nnmpi.nn.parameter import Parameter
from nnmpi.nn.registries import read_attributes

PLAIN = {type(None), bool, int, float, complex, str, bytes, range}

LASTING = ("builtins", "numpy", "math")
"""Python modules whose classes nobody changes."""

READING = {
    "array",
    "asanyarray",
    "asarray",
    "ascontiguousarray",
    "frombuffer",
    "memoryview",
    "ndarray",
}
"""Functions that read the memory of an array without data, unnoticed by it."""

UNREAD = {"__init__", "__new__", "__repr__", "__eq__", "__hash__"}
"""Special methods that a forward pass does not call."""

EMPTY = object()
"""Stands for a variable of a closure that has no value yet."""


class UnfitError(Exception):
    """Raised for code that reads a value which may change unnoticed; the message names the
    value."""


def is_own(part: Any) -> bool:
    """True for modules and functions that belong to nnmpi."""
    if isinstance(part, types.FunctionType):  # `wraps` copies `__module__` from another function
        where = part.__globals__.get("__name__", "")
    elif isinstance(part, Module) or not callable(part):
        where = type(part).__module__
    else:
        where = getattr(part, "__module__", "")
    return str(where).partition(".")[0] == "nnmpi"


def is_built_in(value: Any) -> bool:
    """True for a function of a module that is written in C, and for NumPy's ufuncs; not for
    methods."""
    if isinstance(value, types.BuiltinFunctionType):
        return isinstance(value.__self__, types.ModuleType | None)
    return isinstance(value, np.ufunc)


def is_code(value: Any) -> bool:
    """True for callable objects, such as functions, methods and partials, except modules and
    classes."""
    return callable(value) and not isinstance(value, Module | type)


def foreign(parts: Iterable[Any]) -> str | None:
    """Returns the name of the first user-written module or function that is found in `parts`
    (modules and functions) or as an attribute of these modules; None if all belong to nnmpi."""
    for part in parts:
        if not is_own(part):
            return name_of(part)
        if isinstance(part, Module):
            for name, value in read_attributes(part).items():
                if is_code(value) and not (is_own(value) or is_built_in(value)):
                    return f"{name_of(part)}.{name}"
    return None


class UsersCode:
    """The user-written modules and functions among the parts of a stage (its module and its loss),
    and the values that they read, for comparison before a recorded pass is replayed.

    is_foreign   True if any of the code is not nnmpi's own

    Raises UnfitError if code reads a value that may change unnoticed. Attributes of modules count
    if a `forward` reads them or if their name is in `names`.
    """

    def __init__(self, parts: Iterable[Any], names: Iterable[str] = ()) -> None:
        self._cells = dict[int, types.CellType]()
        self._globals = dict[tuple[int, str], dict[str, Any]]()
        self._classes = dict[type, None]()
        self._arrays = list[np.ndarray]()  # of nnmpi's own modules, such as weights of classes
        self.is_foreign = False
        self._names = {"forward", *names}  # that code has been found to use
        self._looked_at = set[tuple[int, str]]()
        parts = [*parts]
        for part in parts:
            if not isinstance(part, Module):
                self._look_at_value(part, name_of(part))
        known = -1
        while known < (known := len(self._names)):  # what is looked at uses more names
            for part in parts:
                if isinstance(part, Module):
                    self._look_at_module(part)

    def _reads(self, owner: Any, name: str, value: Any) -> bool:
        """True if the code may read the attribute `name` of `owner`, and this method was not called
        for the attribute before, so that each one is examined once. `value` is the value of the
        attribute."""
        is_special = name[:2] == "__" and name not in UNREAD and is_code(value)
        if not (is_special or name in self._names or "getattr" in self._names):
            return False
        is_new = (id(owner), name) not in self._looked_at
        self._looked_at.add((id(owner), name))
        return is_new

    def state(self) -> list[Any]:
        """Returns the values that the code may read, except attributes of modules, as a list that
        can be compared with a later one."""
        self._objects, self._bytes = self._read(), [a.tobytes() for a in self._arrays]
        cells = [compared(contents(cell)) for cell in self._cells.values()]
        cells += [compared(names.get(name)) for (_, name), names in self._globals.items()]
        cells += self._bytes
        return cells + [(name, compared(value)) for _, name, value in self._of_classes()]

    def is_same(self) -> bool:
        """True if the values that the code reads are the same objects as when `state` was last
        called, so that a recorded pass is still valid."""
        if not (self._cells or self._classes or self._arrays or self._globals):
            return True
        read, arrays = self._read(), [array.tobytes() for array in self._arrays]
        same = arrays == self._bytes and len(read) == len(self._objects)
        return same and all(map(is_, read, self._objects))

    def _read(self) -> list[Any]:
        objects = [contents(cell) for cell in self._cells.values()]
        objects += [names.get(name, EMPTY) for (_, name), names in self._globals.items()]
        for cls in self._classes:
            objects += vars(cls).values()
        return objects

    def _of_classes(self) -> Iterator[tuple[type, str, Any]]:
        for cls in self._classes:
            for name, value in vars(cls).items():
                if name[:2] != "__":
                    yield cls, name, value

    def restored(self) -> AbstractContextManager[Callable[[], bool]]:
        """A context at whose end the values that the code reads, and the states of random
        generators, are restored. It yields a function that tells whether one of them has changed so
        far."""
        # if no code is foreign, others may draw meanwhile
        return self._restored() if self.is_foreign else nullcontext(lambda: False)

    @contextmanager
    def _restored(self) -> Iterator[Callable[[], bool]]:
        cells = [(cell, contents(cell)) for cell in self._cells.values()]
        attributes, drawn = [*self._of_classes()], [read() for read, _ in GENERATORS]
        at_first = self.state(), drawn
        try:
            yield lambda: at_first != (self.state(), [read() for read, _ in GENERATORS])
        finally:
            if at_first != (self.state(), [read() for read, _ in GENERATORS]):
                for cell, value in cells:
                    if value is not EMPTY:
                        cell.cell_contents = value
                for cls, name, value in attributes:
                    setattr(cls, name, value)
                for (_, write), state in zip(GENERATORS, drawn, strict=True):
                    write(state)

    def _look_at_module(self, module: Module) -> None:
        name = type(module).__name__
        if module._hooks:
            raise UnfitError(f"{name} has hooks")
        if is_own(module):
            if "forward" in vars(module):
                raise UnfitError(f"{name} has a forward of its own")
            for attribute, value in read_attributes(module).items():
                if isinstance(value, np.ndarray):
                    self._arrays.append(value)
                elif is_code(value):
                    self._look_at_value(value, f"{name}.{attribute}")
            return
        self.is_foreign = True
        for attribute, value in read_attributes(module).items():
            if self._reads(module, attribute, value):
                self._look_at_value(value, f"{name}.{attribute}")
        for cls in type(module).__mro__:
            if not is_own(cls) and cls is not object:
                self._look_at_class(cls)

    def _look_at_class(self, cls: type) -> None:
        self._classes[cls] = None
        for attribute, value in vars(cls).items():
            if self._reads(cls, attribute, value):
                plain = value.fget if isinstance(value, property) else value
                plain = getattr(plain, "__func__", plain)
                self._look_at_value(plain, f"{cls.__name__}.{attribute}")

    def _look_at_value(self, value: Any, name: str) -> None:
        """Registers what `value` refers to, such as the variables of a function, so that changes of
        it are noticed; raises UnfitError if the value may change unnoticed, as a list may. `name`
        is the name under which the code reads the value, for the message."""
        if is_plain(value) or isinstance(value, Module | Parameter | types.ModuleType):
            return
        if isinstance(value, type) and (
            is_own(value) or getattr(value, "__module__", "") in LASTING
        ):
            return
        if isinstance(value, tuple | frozenset):
            for item in value:
                self._look_at_value(item, name)
        elif isinstance(value, partial):
            self._look_at_value((value.func, *value.args, *value.keywords.values()), name)
        elif isinstance(value, types.FunctionType):
            self._look_at_function(value, name)
        elif isinstance(value, types.MethodType):
            self._look_at_value((value.__self__, value.__func__), name)
        elif isinstance(value, type):
            raise UnfitError(f"{name} is a class, whose attributes may change without notice")
        elif not ((is_own(value) and callable(value)) or is_built_in(value)):
            raise UnfitError(f"{name} is a {type(value).__name__}, which may change without notice")

    def _look_at_function(self, function: types.FunctionType, name: str) -> None:
        if is_own(function):
            return
        self.is_foreign = True
        if read := READING & names_in(function.__code__):
            raise UnfitError(f"{name} may read values, by {min(read)}")
        self._names |= names_in(function.__code__)
        self._look_at_globals(function, name)
        defaults = (*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values())
        self._look_at_value(defaults, f"a default of {name}")
        for variable, cell in zip(
            function.__code__.co_freevars, function.__closure__ or (), strict=True
        ):
            if variable == "__class__" or id(cell) in self._cells:
                continue
            self._cells[id(cell)] = cell
            if (value := contents(cell)) is EMPTY:
                continue
            if isinstance(value, Module):
                raise UnfitError(f"{name} uses the module {variable} from outside")
            self._look_at_value(value, f"{variable} in {name}")

    def _look_at_globals(self, function: types.FunctionType, name: str) -> None:
        for operation, variable in operations_of(function.__code__):
            if operation == "LOAD_GLOBAL":
                self._globals[id(function.__globals__), variable] = function.__globals__
            if operation in ("STORE_GLOBAL", "DELETE_GLOBAL"):
                raise UnfitError(f"{name} sets the global variable {variable}")
            value = function.__globals__.get(variable) if operation == "LOAD_GLOBAL" else None
            if isinstance(value, Module):
                raise UnfitError(f"{name} uses the module {variable} from outside")
            if isinstance(value, type) and issubclass(value, Module):
                self._look_at_class(value)
            else:
                self._look_at_value(value, f"{variable} in {name}")


def contents(cell: types.CellType) -> Any:
    """Returns the value of a closure cell; EMPTY if its variable has no value yet."""
    try:
        return cell.cell_contents
    except ValueError:  # the variable has no value yet
        return EMPTY


def compared(value: Any) -> Any:
    """Returns a key for comparing values: numbers and texts by type and value, so that 1 differs
    from 1.0 and True; all other objects by identity."""
    return (type(value), repr(value)) if is_plain(value) else _Same(value)


class _Same:
    """Compares an object by identity. It keeps the object alive, so that no other one gets its
    id."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Same) and other.value is self.value

    def __hash__(self) -> int:
        return id(self.value)


def codes_in(code: types.CodeType) -> Iterator[types.CodeType]:
    """Yields a code object, and those of all functions defined in it."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from codes_in(constant)


def names_in(code: types.CodeType) -> set[str]:
    """Returns the names of attributes and globals in a code object and in the functions defined in
    it."""
    return {name for part in codes_in(code) for name in part.co_names}


def operations_of(code: types.CodeType) -> Iterator[tuple[str, Any]]:
    """Yields (name, argument) of each bytecode operation of a code object and of the functions
    defined in it."""
    for part in codes_in(code):
        for step in dis.get_instructions(part):
            yield step.opname, step.argval


def is_plain(value: Any) -> bool:
    """True for immutable values: numbers, texts, dtypes and the like, and tuples of them."""
    if type(value) is tuple:
        return all(map(is_plain, value))
    is_number = isinstance(value, np.generic) and not isinstance(value, np.void)
    return type(value) in PLAIN or is_number or isinstance(value, np.dtype | Enum)


def name_of(part: Any) -> str:
    """Returns the name of a function or class; of any other object, the name of its class."""
    return getattr(part, "__name__", type(part).__name__)


def _drawn_by_numpy() -> tuple[Any, ...]:
    state: Any = np.random.get_state()  # noqa: NPY002 - users may draw from it
    return (state[0], state[1].tolist(), *state[2:])


GENERATORS: tuple[tuple[Callable[[], Any], Callable[[Any], object]], ...] = (
    (random.getstate, random.setstate),
    (_drawn_by_numpy, np.random.set_state),
)
"""Functions that return and set the states of generators that code of users may draw from."""
