"""Formats tables as text."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeAlias

Align: TypeAlias = Callable[[str, int], str]


def columns(
    rows: Sequence[Sequence[str]], first: Align = str.ljust, others: Align = str.rjust
) -> str:
    """Formats rows of cells as aligned lines; `first` pads the first column."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ([first(head, widths[0]), *map(others, cells, widths[1:])] for head, *cells in rows)
    return "\n".join("  ".join(line).rstrip() for line in lines)


def table(cells: Mapping[str, Callable[[Any], str]], things: Iterable[Any]) -> str:
    """Returns a table as text; `cells` has by heading what makes an item's cell."""
    return columns([[*cells], *([text(thing) for text in cells.values()] for thing in things)])
