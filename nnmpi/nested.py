"""Parsers that call themselves for each level of a text: of JSON and TOML that users wrote."""

import gc
from collections.abc import Callable
from typing import Any


def parsed(parse: Callable[[Any], Any], text: str | bytes) -> Any:
    """What `parse` makes of a text; raises ValueError where it is nested too deeply.

    Meanwhile no garbage is collected: its finalizers would fail at the limit of recursion.
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
