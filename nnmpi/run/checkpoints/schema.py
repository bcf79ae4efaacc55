"""The check of values from JSON against the types of a class; an error names the field.

int               a whole number from 0 to 2^63 - 1
Annotated[T, c]   a T that is in c
tuple[T, ...]     a list or a tuple, which becomes a tuple
Mapping[str, T]   an object
a NamedTuple      a list of its fields, also of one with a type parameter, as N[T]
a dataclass       an object, which may lack fields with a default
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import is_dataclass
from functools import cache
from types import UnionType
from typing import Annotated, Any, Union, get_args, get_origin, get_type_hints

import numpy as np

from nnmpi.options.option import LARGEST
from nnmpi.options.quoting import quoted, shown
from nnmpi.run.checkpoints.located import NAME, DamagedError

NUMBERS: dict[Any, tuple[type, ...]] = {float: (float, int, np.floating)}


@cache
def _parts(kind: Any) -> tuple[Any, tuple[Any, ...], Mapping[str, Any], Set[str]]:
    """The origin and the arguments of a type; the types of the fields of a class, and the names of
    those without a default."""
    origin = get_origin(kind) or kind
    types = get_type_hints(origin, include_extras=True) if isinstance(origin, type) else {}
    for name, of in types.items() if origin is not kind else ():  # of a class with a type parameter
        if of in origin.__parameters__:
            types[name] = get_args(kind)[0]
        elif getattr(of, "__parameters__", ()):
            types[name] = of[get_args(kind)]
    return origin, get_args(kind), types, {name for name in types if not hasattr(kind, name)}


def checked(value: Any, kind: Any, field: str) -> Any:
    """The value as one of the type `kind`; raises DamagedError, with the path of the field."""
    if kind is Any or _is_plain(value, kind):
        return value
    origin, inner, types, needed = _parts(kind)
    if origin in (Union, UnionType):  # T | None
        return None if value is None else checked(value, inner[0], field)
    if origin is Annotated:
        if checked(value, inner[0], field) not in inner[1]:
            raise refused(field, f"{quoted(value)}, which is none of {', '.join(inner[1])}")
        return value
    is_row = isinstance(value, list | tuple)
    if is_row and origin is tuple:
        kinds = inner[:1] * len(value) if inner[-1] is ... else inner
        return tuple(_items(value, kinds, range(len(kinds)), field))
    if is_row and hasattr(origin, "_fields"):
        return origin(*_items(value, types.values(), types, field))
    if isinstance(value, dict) and origin in (Mapping, dict):
        return {key: checked(item, inner[1], f"{field}.{key}") for key, item in value.items()}
    if isinstance(value, dict) and is_dataclass(origin):
        if wrong := (value.keys() - types.keys()) | (needed - value.keys()):
            fault = "unknown" if wrong <= value.keys() else "missing"
            raise refused(field, f"an object whose key {shown(min(wrong))} is {fault}")
        return kind(**{k: checked(item, types[k], f"{field}.{k}") for k, item in value.items()})
    is_other = isinstance(value, bool) is not (kind is bool)
    if is_other or types or not isinstance(value, NUMBERS.get(kind, origin)):
        raise refused(field, f"{quoted(value)}, which is not of type {origin.__name__}")
    if kind is int and not 0 <= value <= LARGEST:
        raise refused(field, f"{quoted(value)}, which is not from 0 to {LARGEST:,}")
    return value


def _is_plain(value: Any, kind: Any) -> bool:
    """Whether it is right without a look at the parts of the type: most values are numbers."""
    return type(value) is kind and (kind is not int or 0 <= value <= LARGEST)


def _items(
    values: Sequence[Any], kinds: Collection[Any], names: Iterable[object], field: str
) -> Iterator[Any]:
    if len(values) != len(kinds):
        raise refused(field, f"a list of {len(values):,} values, not {len(kinds)}")
    for value, kind, name in zip(values, kinds, names, strict=True):
        if _is_plain(value, kind):  # without the path, which takes longer than the check
            yield value
        else:
            path = f"{field}.{name}" if isinstance(name, str) else f"{field}[{name}]"
            yield checked(value, kind, path)


def refused(field: str, fault: str) -> DamagedError:
    """The error for a field of the manifest."""
    return DamagedError(f"{NAME}: {shown(field)} is {fault}")
