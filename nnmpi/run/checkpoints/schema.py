"""Values from JSON as the types of a class says.

tuple[T, ...]     a list, which becomes a tuple
Mapping[str, T]   an object
a NamedTuple      a list of its fields, also of one with a type parameter, as N[T]
a dataclass       an object, which may lack fields with a default
"""

from collections.abc import Mapping
from dataclasses import is_dataclass
from functools import cache
from types import UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints


@cache
def _parts(kind: Any) -> tuple[Any, tuple[Any, ...], Mapping[str, Any]]:
    """The origin and the arguments of a type; the types of the fields of a class."""
    origin = get_origin(kind) or kind
    types = get_type_hints(origin) if isinstance(origin, type) else {}
    for name, of in types.items() if origin is not kind else ():  # of a class with a type parameter
        if of in origin.__parameters__:
            types[name] = get_args(kind)[0]
        elif getattr(of, "__parameters__", ()):
            types[name] = of[get_args(kind)]
    return origin, get_args(kind), types


def decoded(value: Any, kind: Any) -> Any:
    """The value as one of the type `kind`."""
    if kind is Any or type(value) is kind:  # most values are numbers
        return value
    origin, inner, types = _parts(kind)
    if origin in (Union, UnionType):  # T | None
        return None if value is None else decoded(value, inner[0])
    if origin is tuple:
        return tuple(map(decoded, value, inner[:1] * len(value) if inner[-1] is ... else inner))
    if hasattr(origin, "_fields"):
        return origin(*map(decoded, value, types.values()))
    if origin is Mapping:
        return {key: decoded(item, inner[1]) for key, item in value.items()}
    if is_dataclass(origin):
        return kind(**{key: decoded(item, types[key]) for key, item in value.items()})
    return value
