"""A reader of pickles that builds plain values and calls only functions of a fixed table.

Python's pickle module imports and calls functions that a file names. This reader imports nothing:
it refuses a name that is not in the table. Apart from results of the table's functions, it creates
no value that is larger than the pickle itself.

    ops         the operations of a pickle, parsed by `pickletools`
    stack       values, and MARK where a list of items begins
    memo        values by number, which later operations use again
"""

import pickletools
import warnings
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from nnmpi.options.quoting import shown

VALUES = {
    *("BININT", "BININT1", "BININT2", "LONG1", "LONG4", "BINFLOAT"),
    *("BINUNICODE", "SHORT_BINUNICODE", "BINUNICODE8", "BINSTRING", "SHORT_BINSTRING"),
}
"""Operations that push the number or the text that follows them."""

CONSTANTS: Mapping[str, Callable[[], Any]] = {
    "NONE": lambda: None,
    "NEWTRUE": lambda: True,
    "NEWFALSE": lambda: False,
    "EMPTY_DICT": dict,
    "EMPTY_LIST": list,
    "EMPTY_SET": set,
    "EMPTY_TUPLE": tuple,
}

TUPLES = {"TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}
PLAIN_KEYS = str, int, float, bool, type(None)
MOST_ALIKE = 100
"""The most keys of one hash in a dictionary or a set: a search among them compares each."""

MARK = object()


class RefusedPickleError(ValueError):
    """Raised for a pickle that contains more than plain values."""


class Named(NamedTuple):
    """A function that pickles may call, with the name by which the pickle refers to it."""

    name: str
    value: Any


class Unpickler:
    """Reads the values of pickles that follow each other in a file.

    names        maps the names that a pickle may use to a function that it may call, or to a value
    persistent   returns the value for a persistent id, which refers to data outside of the pickle
    """

    def __init__(self, names: Mapping[str, Any], persistent: Callable[[Any], Any]) -> None:
        self._names, self._persistent = names, persistent
        self._stack, self._memo = list[Any](), dict[int, Any]()
        self._hashes = defaultdict[int, Counter[int]](Counter)

    def load(self, file: Any) -> Any:
        """Returns the next value of a file or an mmap; raises ValueError for a damaged pickle."""
        self._stack, self._memo = [], {}
        self._hashes.clear()
        try:
            with warnings.catch_warnings():  # of escapes in the names of a damaged pickle
                warnings.simplefilter("ignore", DeprecationWarning)
                for op, argument, _ in pickletools.genops(file):
                    self._do(op.name, argument)
            (value,) = self._stack
        except (IndexError, KeyError, TypeError, OverflowError) as error:
            raise ValueError(f"a damaged pickle: {type(error).__name__}: {error}") from None
        return value

    def _do(self, op: str, argument: Any) -> None:
        stack = self._stack
        if op in VALUES:
            stack.append(argument)
        elif op in CONSTANTS:
            stack.append(CONSTANTS[op]())
        elif op in ("BINPUT", "LONG_BINPUT"):
            self._memo[argument] = stack[-1]
        elif op == "MEMOIZE":
            self._memo[len(self._memo)] = stack[-1]
        elif op in ("BINGET", "LONG_BINGET"):
            stack.append(self._memo[argument])
        elif op == "MARK":
            stack.append(MARK)
        elif op in TUPLES:
            n = TUPLES[op]
            stack[-n:] = [tuple(stack[len(stack) - n :])]
        elif op in ("GLOBAL", "STACK_GLOBAL"):
            name = argument if op == "GLOBAL" else f"{self._pop(str, -2)} {self._pop(str)}"
            stack.append(self._named(name.replace(" ", ".")))
        elif op in ("TUPLE", "APPENDS", "SETITEMS", "ADDITEMS"):
            self._gather(op, self._items())
        elif op in ("APPEND", "SETITEM"):
            n = 1 if op == "APPEND" else 2
            items = stack[-n:]
            del stack[-n:]
            self._gather(f"{op}S", items)
        elif op == "REDUCE":
            arguments, function = self._pop(tuple), self._pop(Named)
            if not callable(function.value) or isinstance(function.value, type):
                raise RefusedPickleError(f"a call of {function.name}")
            stack.append(function.value(*arguments))
        elif op == "BUILD":
            self._pop(dict)  # attributes of a state dict
            if not isinstance(stack[-1], dict):
                raise RefusedPickleError(f"attributes of a {type(stack[-1]).__name__}")
        elif op == "BINPERSID":
            stack.append(self._persistent(stack.pop()))
        elif op not in ("PROTO", "FRAME", "STOP"):
            raise RefusedPickleError(f"the operation {op}")

    def _named(self, name: str) -> Any:
        if name not in self._names:
            raise RefusedPickleError(shown(name))
        value = self._names[name]
        is_function = callable(value) and not isinstance(value, type)
        return Named(name, value) if is_function else value

    def _pop(self, kind: type, at: int = -1) -> Any:
        """Removes and returns the value at an index; raises TypeError for another type."""
        value = self._stack.pop(at)
        if not isinstance(value, kind):
            raise TypeError(f"a {type(value).__name__} in the place of a {kind.__name__}")
        return value

    def _items(self) -> list[Any]:
        """Removes the last MARK and the values above it, and returns these."""
        at = len(self._stack) - 1
        while self._stack[at] is not MARK:  # from above, so that no pickle takes quadratic time
            at -= 1
        items = self._stack[at + 1 :]
        del self._stack[at:]
        return items

    def _gather(self, op: str, items: list[Any]) -> None:
        """Carries out an operation of a pickle on several items: `op` pushes a tuple of them, or
        adds them to the list, set or dictionary on top of the stack."""
        if op == "TUPLE":
            self._stack.append(tuple(items))
            return
        into = self._stack[-1]
        if op == "APPENDS" and isinstance(into, list):
            into += items
        elif op == "ADDITEMS" and isinstance(into, set):
            into.update(self._keys(into, items))
        elif op == "SETITEMS" and isinstance(into, dict):
            into.update(zip(self._keys(into, items[::2]), items[1::2], strict=True))
        else:
            raise TypeError(f"{op} of a {type(into).__name__}")

    def _keys(self, into: object, keys: Sequence[Any]) -> Iterator[Any]:
        """Yields the keys that are added to a dictionary or a set. Raises RefusedPickleError if it
        gets so many keys of one hash that adding them would take quadratic time."""
        hashes = self._hashes[id(into)]
        for key in map(plain_key, keys):
            hashes[hash(key)] += 1
            if hashes[hash(key)] > MOST_ALIKE:
                raise RefusedPickleError(f"more than {MOST_ALIKE} keys of one hash")
            yield key


def plain_key(key: Any) -> Any:
    """Returns a dictionary key if it is a plain value or a flat tuple of these; raises
    RefusedPickleError for others: hashing tuples that contain the next one twice may take for
    ever."""
    flat = key if isinstance(key, tuple) else (key,)
    if not all(isinstance(part, PLAIN_KEYS) for part in flat):
        raise RefusedPickleError(f"a key that is a {type(key).__name__}")
    return key
