"""What users wrote: their files, up to so many bytes, and JSON and TOML, however deeply nested."""

import gc
import os
from collections.abc import Callable
from typing import Any


def content(
    path: str | os.PathLike[str],
    what: str,
    most: int,
    remedy: str,
    shorter: str = "",
    start: int = 0,
) -> bytes:
    """The bytes of a file from `start` on.

    Raises ValueError if it cannot be read, or if these are more than `most` bytes.

    remedy, shorter: what to do then
    """
    try:
        with open(path, "rb") as file:
            if start:
                file.seek(start)
            found = file.read(most + 1)
    except OSError as error:
        raise ValueError(f"cannot read {what}: {error.strerror or error}; {remedy}") from None
    if len(found) > most:
        raise ValueError(f"{what} is longer than {most:,} bytes; {shorter or remedy}")
    return found


def parsed(parse: Callable[[Any], Any], text: str | bytes) -> Any:
    """What `parse` makes of a text; raises ValueError where it is nested too deeply: parsers call
    themselves for each level.

    Meanwhile no garbage is collected: its finalizers would fail at the limit of recursion. Where
    ranks are threads, one may end this for another; then such a failure is printed, and no more.
    """
    collects = gc.isenabled()
    gc.disable()
    try:
        return parse(text)
    except RecursionError:
        raise ValueError("its lists, objects or tables are nested too deeply") from None
    finally:
        if collects:
            gc.enable()
