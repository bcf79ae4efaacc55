"""Numbers and tables as text."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeAlias

Align: TypeAlias = Callable[[str, int], str]


def duration(seconds: float) -> str:
    """Formats seconds with three digits and a unit."""
    for unit, size in (("s", 1.0), ("ms", 1e-3), ("us", 1e-6)):
        if abs(seconds) >= size * (1 - 1e-12):
            return f"{_three(seconds / size)} {unit}"
    return f"{_three(seconds / 1e-9)} ns" if seconds else "0 s"


def amount(nbytes: float) -> str:
    """Formats bytes in decimal units, as usual for networks."""
    for unit, size in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if nbytes >= size:
            return f"{nbytes / size:.4g} {unit}"
    return f"{nbytes:.4g} B"


def _three(x: float) -> str:
    return f"{x:,.0f}" if abs(x) >= 999.5 else f"{x:.3g}"


def three_or_none(x: float | None) -> str:
    """Formats a number with three digits, and `-` if there is none."""
    return "-" if x is None else _three(x)


def columns(
    rows: Sequence[Sequence[str]], first: Align = str.ljust, others: Align = str.rjust
) -> str:
    """Formats rows of cells as lines; `first` aligns the first column, `others` the rest."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ([first(head, widths[0]), *map(others, cells, widths[1:])] for head, *cells in rows)
    return "\n".join("  ".join(line).rstrip() for line in lines)


def table(cells: Mapping[str, Callable[[Any], str]], things: Iterable[Any]) -> str:
    """A table with a line for each item; `cells` maps headings to functions of an item."""
    return columns([[*cells], *([text(thing) for text in cells.values()] for thing in things)])


def plural(n: int, noun: str, ending: str = "s") -> str:
    """Formats a count with its noun: `1 rank`, `1,024 ranks`."""
    return f"{n:,} {noun}{ending * (n != 1)}"
