"""Options of a Config: dataclass fields with metadata, and the check of their values."""

import sys
from collections.abc import Callable
from dataclasses import Field, field
from numbers import Integral, Real
from typing import Any, get_args

from nnmpi.options import user_code
from nnmpi.options.quoting import quoted
from nnmpi.options.terms import Allowed, check_text

LARGEST = 2**63 - 1  # integer; larger ones fit no counter
_NUMBERS: dict[type, type] = {int: Integral, float: Real}  # accepted types: NumPy's too


def option(
    group: str,
    default: Any,
    text: str,
    within: Allowed | None = None,
    choices: tuple[Any, ...] = (),
    alias: str | None = None,
    custom: bool = False,
    form: Callable[[str], object] | None = None,
    bare: Any = None,
) -> Any:
    """A field with its metadata.

    `alias` is a second name. With `custom`, package.module:NAME is a choice too, which is imported.
    `form` raises ValueError for a text of another form. `bare` is the value of a flag without one.
    """
    metadata = {"group": group, "help": text, "choices": choices, "custom": custom, "form": form}
    more = {"within": within, "alias": alias, "bare": bare}
    return field(default=default, metadata={**metadata, **more})


def kind_of(option: "Field[Any]") -> type:
    """The type of an option: int for int and for int | None."""
    kinds: tuple[type, ...] = get_args(option.type) or (option.type,)
    return kinds[0]


def checked(option: "Field[Any]", value: Any) -> Any:
    """The value, as a number of Python; raises ValueError for another type, form or range."""
    name, m = option.name, option.metadata
    kind, known = kind_of(option), m["choices"]
    if value is None and option.default is None:
        return None
    if isinstance(value, _NUMBERS.get(kind, ())) and not isinstance(value, bool):
        try:
            value = kind(value)
        except OverflowError:
            raise ValueError(
                f"{name} is larger than {sys.float_info.max:g}, the largest float"
            ) from None
    elif type(value) is not kind:
        raise ValueError(f"{name} {quoted(value)} is not of type {kind.__name__}")
    if kind is str:
        check_text(name, value)
        try:
            if m["form"]:
                m["form"](value)
        except ValueError as error:
            raise ValueError(f"{name} {error}") from None
    if known and value not in known and not (m["custom"] and user_code.is_named(value)):
        names = ", ".join([*map(str, known), *["package.module:NAME"] * m["custom"]])
        raise ValueError(f"{name} {quoted(value)} is not one of {names}")
    if m["within"] and not m["within"].has(value):
        remedy = "leave it out" if option.default is None else f"default: {option.default}"
        raise ValueError(f"{name} {quoted(value)} must be {m['within'].words}; {remedy}")
    if kind is int and value > LARGEST:
        raise ValueError(f"{name} {quoted(value)} must be at most {LARGEST}")
    return value
