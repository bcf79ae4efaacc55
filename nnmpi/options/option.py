"""Options of a Config: dataclass fields with metadata, and the check of their values."""

import sys
from collections.abc import Callable
from dataclasses import Field, field
from numbers import Integral, Real
from typing import Any, get_args

from nnmpi.options import user_code
from nnmpi.options.quoting import quoted
from nnmpi.options.resume_rules import ResumeRule
from nnmpi.options.value_forms import Allowed, check_text

LARGEST = 2**63 - 1  # the largest integer that counters can hold
_NUMBERS: dict[type, type] = {int: Integral, float: Real}  # so that NumPy's types are accepted


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
    *,
    resume: ResumeRule,
) -> Any:
    """Makes a field of Config for an option, with its help text and its checks as metadata.

    group    the group of the option in --help, such as "model"
    within   the range of numbers that are allowed
    choices  the values that are allowed; (): all
    alias    a second name
    custom   True if the value may also be package.module:NAME, which is imported
    form     raises ValueError for a text that it cannot parse
    bare     the value of a flag that is given without a value
    resume   the effect if a resumed run has another value
    """
    metadata = {"group": group, "help": text, "choices": choices, "custom": custom, "form": form}
    checks = {"within": within, "alias": alias, "bare": bare, "resume": resume}
    return field(default=default, metadata={**metadata, **checks})


def kind_of(option: "Field[Any]") -> type:
    """Returns the type of an option's values: int for both int and int | None."""
    kinds: tuple[type, ...] = get_args(option.type) or (option.type,)
    return kinds[0]


def checked(option: "Field[Any]", value: Any) -> Any:
    """Returns an option's value as a Python type, or raises ValueError."""
    name, metadata = option.name, option.metadata
    kind, choices = kind_of(option), metadata["choices"]
    if value is None and option.default is None:
        return None
    if kind is str and metadata["bare"] and isinstance(value, bool):  # as of a flag, or a file
        value = metadata["bare"] if value else option.default
    # a bool is an int in Python, but `epochs = true` in a file is a mistake
    if isinstance(value, _NUMBERS.get(kind, ())) and not isinstance(value, bool):
        try:
            value = kind(value)
        except OverflowError:
            raise ValueError(
                f"{name} is larger than the largest float, {sys.float_info.max:g}"
            ) from None
    elif type(value) is not kind:
        raise ValueError(f"{name} {quoted(value)} is not of type {kind.__name__}")
    if kind is str:
        check_text(name, value)
        try:
            if metadata["form"]:
                metadata["form"](value)
        except ValueError as error:
            raise ValueError(f"{name} {error}") from None
    if choices and value not in choices and not (metadata["custom"] and user_code.is_named(value)):
        names = ", ".join([*map(str, choices), *["package.module:NAME"] * metadata["custom"]])
        raise ValueError(f"{name} {quoted(value)} is not one of {names}")
    if metadata["within"] and not metadata["within"].has(value):
        remedy = "leave it out" if option.default is None else f"default: {option.default}"
        raise ValueError(f"{name} {quoted(value)} must be {metadata['within'].words}; {remedy}")
    if kind is int and value > LARGEST:
        raise ValueError(f"{name} {quoted(value)} must be at most {LARGEST}")
    return value
