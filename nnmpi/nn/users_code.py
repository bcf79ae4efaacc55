"""The values that users' code reads in a recorded pass or step, besides its inputs.

A recording is replayed as long as these values are the same. Before each replay they are compared:
attributes of modules, global variables, variables of closures, the code of functions. What code
reads is found by `code_reader.py`, which refuses code that it does not understand.
"""

import random
import types
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from enum import Enum
from functools import partial
from operator import is_
from typing import Any

import numpy as np

from nnmpi.nn.module import Module
from nnmpi.nn.registries import OF_ALL, read_attributes

PLAIN = {type(None), bool, int, float, complex, str, bytes, range}

MISSING = object()
"""Stands for a variable without a value."""


class UnfitError(Exception):
    """Raised for code that reads a value which may change unnoticed. `advice` says, as the end of a
    message, what to write instead in a training step."""

    def __init__(self, message: str, advice: str = "") -> None:
        super().__init__(message)
        self.advice = advice


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
    """True for a function of C, and NumPy's ufuncs; not for methods."""
    if isinstance(value, types.BuiltinFunctionType):
        return isinstance(value.__self__, types.ModuleType | None)
    return isinstance(value, np.ufunc)


def is_code(value: Any) -> bool:
    """True for what can be called, except modules and classes."""
    return callable(value) and not isinstance(value, Module | type)


def foreign(parts: Iterable[Any]) -> str | None:
    """Returns the first user-written module or function in `parts` or their attributes."""
    for part in parts:
        if not is_own(part):
            return name_of(part)
        if isinstance(part, Module):
            for name, value in read_attributes(part).items():
                if is_code(value) and not (is_own(value) or is_built_in(value)):
                    return f"{name_of(part)}.{name}"
    return None


class ReadValues:
    """The values that the code of a recorded pass reads, for comparison before it is replayed;
    `is_foreign` if any of the code is not nnmpi's own."""

    def __init__(self) -> None:
        self._reads = dict[tuple[int, str], Any]()  # (id(owner), expression) -> owner
        self._cells, self._classes = list[types.CellType](), list[type]()
        self._arrays = list[np.ndarray]()  # of nnmpi's own modules, such as weights of classes
        self.is_foreign = False

    # ---- what is compared

    def _add(self, owner: Any, *expressions: str) -> None:
        """Adds what these expressions give, in which @ stands for the object `owner`."""
        for expression in expressions:
            self._reads[id(owner), expression] = owner

    def add_module(self, module: Module) -> None:
        """Adds the attributes of a module and the `forward` of its class; raises UnfitError if
        hooks, or a function in place of that, run in it."""
        name, of_library = type(module).__name__, is_own(module)
        if module._hooks:
            raise UnfitError(f"{name} has hooks")
        if of_library and "forward" in vars(module):
            raise UnfitError(f"{name} has a forward of its own")
        self._add(vars(module), "len(@)")
        skipped = OF_ALL.union(module._buffers, ["training"])
        for attribute in vars(module):
            is_cache = of_library and attribute[0] == "_"
            if attribute not in skipped and not is_cache:
                self.add_name(vars(module), attribute)
        if of_library:
            self._add(type(module), "@.forward")
            values = read_attributes(module).values()
            self._arrays += [value for value in values if isinstance(value, np.ndarray)]

    def add_name(self, variables: Mapping[str, Any], name: str) -> None:
        """Adds a variable: a name in the dictionary of a Python module, an object or a class."""
        is_there = name in variables
        self._add(variables, f"@[{name!r}]" if is_there else f"@.get({name!r}, MISSING)")

    def add_buffer(self, module: Module, name: str) -> None:
        """Adds the array of a buffer, or that it is None."""
        if getattr(module, name) is None:
            self.add_name(vars(module), name)
        else:
            self._add(vars(module), f"@[{name!r}]._array")

    def add_items(self, variables: Mapping[str, Any]) -> None:
        """Adds all items of a dictionary, to which none may be added later."""
        self._add(variables, "len(@)")
        for name in variables:
            self.add_name(variables, name)

    def add_cell(self, cell: types.CellType) -> None:
        """Adds a variable of a closure."""
        self._cells.append(cell)
        self._add(cell, "contents(@)")

    def add_function(self, function: types.FunctionType) -> None:
        """Adds the code of a function, its defaults and its attributes."""
        self.is_foreign = True
        self._add(function, "@.__code__", "@.__defaults__", "@.__kwdefaults__", "@.__dict__")
        self.add_items(vars(function))
        self.add_items(function.__kwdefaults__ or {})

    def add_partial(self, function: partial[Any]) -> None:
        self._add(function, "@.func", "@.args", "@.keywords")
        self.add_items(function.keywords)

    def add_class(self, cls: type) -> None:
        self.is_foreign = True
        self._classes.append(cls)
        self._add(cls, "*vars(@).values()", "@.__mro__")

    def add_class_of(self, owner: Any) -> None:
        """Adds the class of an object, or a class: from which others it is derived. Of an object,
        also which dictionary has its attributes."""
        of_object = ("@.__class__.__mro__", "@.__dict__")
        self._add(owner, *(("@.__mro__",) if isinstance(owner, type) else of_object))

    # ---- comparison

    def note(self) -> None:
        """Reads all values, with which later ones are compared. The source of the function that
        reads them is made here: it takes 1 us for 40 values, and loops over their kinds take 4."""
        names = {id(owner): f"x{k}" for k, owner in enumerate(self._reads.values())}
        parts = (part.replace("@", names[number], 1) for number, part in self._reads)
        space = {names[id(owner)]: owner for owner in self._reads.values()}
        space |= {"contents": contents, "MISSING": MISSING}
        self._read: Callable[[], list[Any]] = eval(f"lambda: [{', '.join(parts)}]", space)
        self._reads.clear()  # which takes memory
        self._objects = self._read()
        self.state = self._compared(self._objects)

    def is_same(self) -> bool:
        """True if the values that the code reads are those that `note` has read."""
        try:
            read = self._read()
        except (KeyError, AttributeError):  # a variable was deleted, or a buffer is None
            return False
        same = len(read) == len(self._objects) and all(map(is_, read, self._objects))
        return (same and not self._arrays) or self._is_equal(read)

    def _is_equal(self, read: list[Any]) -> bool:
        """Compares by value, as equal numbers may be other objects."""
        if self._compared(read) != self.state:
            return False
        self._objects = read
        return True

    def _compared(self, read: Iterable[Any]) -> list[Any]:
        """Returns a list that is equal to another one if these values, and the arrays, are."""
        return [*map(compared, read), *(array.tobytes() for array in self._arrays)]

    def _values_now(self) -> list[Any] | None:
        """Returns the values as they are now, for comparison; None if one was deleted."""
        try:
            return self._compared(self._read())
        except (KeyError, AttributeError):
            return None

    # ---- restoring

    def restored(self) -> AbstractContextManager[Callable[[], bool]]:
        """A context at whose end what the code reads, and the states of random generators, are
        restored. It yields a function that tells whether one of them has changed so far."""
        # if no code is foreign, others may draw meanwhile
        return self._restored() if self.is_foreign else nullcontext(lambda: False)

    @contextmanager
    def _restored(self) -> Iterator[Callable[[], bool]]:
        cells = [(cell, contents(cell)) for cell in self._cells]
        attributes = [(c, n, v) for c in self._classes for n, v in vars(c).items() if n[:2] != "__"]
        drawn = [read() for read, _ in GENERATORS]
        at_first = self._values_now()  # others than `note` has read, if the code writes them

        def has_changed() -> bool:
            return at_first != self._values_now() or drawn != [read() for read, _ in GENERATORS]

        try:
            yield has_changed
        finally:
            if has_changed():
                for cell, value in cells:
                    if value is not MISSING:
                        cell.cell_contents = value
                for cls, name, value in attributes:
                    setattr(cls, name, value)
                for (_, write), state in zip(GENERATORS, drawn, strict=True):
                    write(state)


def contents(cell: types.CellType) -> Any:
    """Returns the value of a closure cell; MISSING if its variable has no value yet."""
    try:
        return cell.cell_contents
    except ValueError:  # the variable has no value yet
        return MISSING


def compared(value: Any) -> Any:
    """Returns a key: numbers and texts by type and value, others by identity."""
    return (type(value), repr(value)) if is_plain(value) else _Same(value)


class _Same:
    """Compares by identity, and keeps the object alive: no other gets its id."""

    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Same) and other.value is self.value

    def __hash__(self) -> int:
        return id(self.value)


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
