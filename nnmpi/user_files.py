"""What users wrote: their files, up to so many bytes, and JSON and TOML, however deeply nested."""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any


def content(
    path: str | os.PathLike[str], what: str, most: int, remedy: str, shorter: str = ""
) -> bytes:
    """The bytes of a file; raises ValueError if it cannot be read, or has more than `most`.

    remedy, shorter: what to do then
    """
    try:
        with open(path, "rb") as file:
            data = file.read(most + 1)
    except OSError as error:
        raise ValueError(f"cannot read {what}: {error.strerror or error}; {remedy}") from None
    if len(data) > most:
        raise ValueError(f"{what} is longer than {most:,} bytes; {shorter or remedy}")
    return data


def parsed(parse: Callable[[Any], Any], text: str | bytes) -> Any:
    """The result of `parse` for a text; raises ValueError where it is nested too deeply."""
    try:
        return parse(text)
    except RecursionError:
        raise ValueError("its lists, objects or tables are nested too deeply") from None


@contextmanager
def refusing_others(what: str, remedy: str) -> Iterator[None]:
    """Has ValueError raised where what was parsed has not the form that nnmpi writes."""
    try:
        yield
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        raise ValueError(f"{what}: {error!r:.100}; {remedy}") from None
