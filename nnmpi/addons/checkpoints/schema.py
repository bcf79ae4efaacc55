"""Converts values of Python and NumPy to JSON and back, exactly, and checks them against types.

(0.9, 0.999)      {"tuple": [0.9, 0.999]}
inf               {"float": "inf"}
np.float32(0.1)   {"numpy": ["float32", 0.10000000149011612]}
an array          {"array": 0}: the first in a list of arrays, which are written elsewhere
{"tuple": 1}      {"dict": {"tuple": 1}}: a dict that looks like one of these

The check against types accepts these, and its errors name the field:

int               an integer from 0 to 2^63 - 1
Annotated[T, c]   a T that is in c
tuple[T, ...]     a list or a tuple, which becomes a tuple
Mapping[str, T]   an object
a NamedTuple      a list of its fields
a dataclass       an object, which may lack fields with a default
"""

import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import is_dataclass
from functools import cache
from types import UnionType
from typing import Annotated, Any, Union, get_args, get_origin, get_type_hints

import numpy as np

from nnmpi.arrays.dtypes import named
from nnmpi.nn.tensor_files import TYPES
from nnmpi.options.option import LARGEST
from nnmpi.options.quoting import quoted, shown

NAME = "manifest.json"
TYPE_NAMES = (*TYPES,)


class DamagedError(ValueError):
    """Raised for a checkpoint, or a part of one, that differs from the one that was written."""


# ---- values as JSON


MARKS: dict[str, Any] = {
    "tuple": tuple[Any, ...],
    "float": str,
    "numpy": tuple[Annotated[str, TYPE_NAMES], Any],
    "array": int,
    "dict": Mapping[str, Any],
}
"""The marks of encoded values, each with the type of the value that follows it."""


def as_json(value: Any, arrays: list[np.ndarray]) -> Any:
    """Returns a value in a form that json.dumps accepts and `from_json` converts back; its arrays
    are appended to `arrays`, and their numbers stand in their places. Raises ValueError for other
    types."""
    if isinstance(value, np.generic) and value.dtype.name in TYPES:
        return {"numpy": [value.dtype.name, as_json(value.item(), arrays)]}
    if value is None or isinstance(value, bool | str | int):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else {"float": repr(value)}
    if isinstance(value, np.ndarray) and value.dtype.name in TYPES:
        arrays.append(value)
        return {"array": len(arrays) - 1}
    if isinstance(value, tuple | list):
        items = [as_json(item, arrays) for item in value]
        return {"tuple": items} if isinstance(value, tuple) else items
    if isinstance(value, Mapping) and all(isinstance(key, str) for key in value):
        encoded = {key: as_json(item, arrays) for key, item in value.items()}
        return (
            {"dict": encoded} if len(encoded) == 1 and encoded.keys() <= MARKS.keys() else encoded
        )
    kind = "a dict with keys that are not strings" if isinstance(value, Mapping) else repr(value)
    if isinstance(value, np.ndarray):
        kind = f"an array of {value.dtype}"
    raise ValueError(
        f"a checkpoint cannot hold {shown(kind)} (of type {type(value).__name__}): give numbers, "
        "strings, arrays, and lists, tuples and dicts of them"
    )


def from_json(value: Any, arrays: Sequence[Any], field: str) -> Any:
    """Returns the value that `as_json` has encoded with these arrays. Raises DamagedError, with
    `field`, the path of the value in the manifest, for other JSON."""

    def items(row: Any) -> list[Any]:
        return [from_json(item, arrays, f"{field}[{i}]") for i, item in enumerate(row)]

    if isinstance(value, list):
        return items(value)
    if not isinstance(value, dict):
        return value
    mark, inner = next(iter(value.items())) if len(value) == 1 else ("", value)
    encoded: Mapping[str, Any] = value
    if mark in MARKS:
        inner = checked(inner, MARKS[mark], field)
        try:
            if mark == "tuple":
                return tuple(items(inner))
            if mark == "float":
                return float(inner)
            if mark == "numpy":
                return named(inner[0]).type(from_json(inner[1], arrays, field))
            if mark == "array":
                return arrays[inner]
        except (IndexError, TypeError, ValueError) as error:
            raise refused(field, f"not a value: {shown(error)}") from None
        encoded = inner
    return {key: from_json(item, arrays, f"{field}.{key}") for key, item in encoded.items()}


# ---- the check


NUMBERS: dict[Any, tuple[type, ...]] = {float: (float, int, np.floating)}


@cache
def _parts(kind: Any) -> tuple[Any, tuple[Any, ...], Mapping[str, Any], Set[str]]:
    """Returns a type's origin, such as tuple for tuple[int, ...]; its arguments; for a class, the
    types of its fields by name; and the names of fields without a default."""
    origin = get_origin(kind) or kind
    types = get_type_hints(origin, include_extras=True) if isinstance(origin, type) else {}
    return origin, get_args(kind), types, {name for name in types if not hasattr(kind, name)}


def checked(value: Any, kind: Any, field: str) -> Any:
    """Returns a value of a manifest's JSON converted to the type `kind`, such as a dataclass;
    raises DamagedError, with `field`, the path of the value, if it does not fit."""
    if kind is Any or _is_plain(value, kind):
        return value
    origin, inner, types, needed = _parts(kind)
    if origin in (Union, UnionType):  # T | None; of several NamedTuples, the one as long
        length = len(value) if isinstance(value, list | tuple) else 0
        if value is None and type(None) in inner:
            return None
        of_length = (of for of in inner if len(getattr(of, "_fields", ())) == length)
        return checked(value, next(of_length, inner[0]), field)
    if origin is Annotated:
        if checked(value, inner[0], field) not in inner[1]:
            raise refused(field, f"{quoted(value)}, which is not one of {', '.join(inner[1])}")
        return value
    is_row = isinstance(value, list | tuple)
    if is_row and origin is tuple:
        kinds = inner[:1] * len(value) if inner[-1] is ... else inner
        return tuple(_items(value, kinds, range(len(kinds)), field))
    if is_row and hasattr(origin, "_fields"):
        return origin(*_items(value, [*types.values()], [*types], field))
    if isinstance(value, dict) and origin in (Mapping, dict):
        return {key: checked(item, inner[1], f"{field}.{key}") for key, item in value.items()}
    if isinstance(value, dict) and is_dataclass(origin):
        lacks, unknown = needed - value.keys(), value.keys() - types.keys()
        if lacks or unknown:
            fault = "without the key" if lacks else "with the unknown key"
            raise refused(field, f"an object {fault} {shown(min(lacks or unknown))}")
        return kind(**{k: checked(item, types[k], f"{field}.{k}") for k, item in value.items()})
    is_other = isinstance(value, bool) is not (kind is bool)
    if is_other or types or not isinstance(value, NUMBERS.get(kind, origin)):
        raise refused(field, f"{quoted(value)}, which is not of type {origin.__name__}")
    if kind is int and not 0 <= value <= LARGEST:
        raise refused(field, f"{quoted(value)}, which is not from 0 to {LARGEST:,}")
    return value


def _is_plain(value: Any, kind: Any) -> bool:
    """Returns True if a value needs no conversion: a quick test, since most values are numbers."""
    return type(value) is kind and (kind is not int or 0 <= value <= LARGEST)


def _items(
    values: Sequence[Any], kinds: Collection[Any], names: Iterable[object], field: str
) -> Iterator[Any]:
    if len(values) != len(kinds):
        raise refused(field, f"a list of {len(values):,} values, not {len(kinds)}")
    for value, kind, name in zip(values, kinds, names, strict=True):
        if _is_plain(value, kind):  # most: do not build their paths, which takes longer
            yield value
        else:
            path = f"{field}.{name}" if isinstance(name, str) else f"{field}[{name}]"
            yield checked(value, kind, path)


def refused(field: str, fault: str) -> DamagedError:
    """Returns the DamagedError of a manifest's field: `fault` says what is wrong."""
    return DamagedError(f"{NAME}: {shown(field)} is {fault}")
