"""Pieces of text that events have in common."""

from collections.abc import Callable, Sequence
from typing import Any

Event = dict[str, Any]


def counted(n: int, what: str, plural: str = "s") -> str:
    """The number with its noun."""
    return f"{n:,} {what}{plural * (n != 1)}"


def table(rows: Sequence[Sequence[str]], align: Callable[[str, int], str] = str.rjust) -> str:
    """Rows of cells as lines."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join("  ".join(map(align, row, widths)).rstrip() for row in rows)


def size(nbytes: int) -> str:
    """Bytes in a unit that suits them."""
    return f"{nbytes / 1e6:,.1f} MB" if nbytes >= 1e6 else f"{nbytes / 1e3:,.1f} KB"
