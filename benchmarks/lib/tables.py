"""Tables of rows: a line per row, a column per figure."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

from lib.timing import Row


class Column(NamedTuple):
    """A figure of each row; rows without it have a blank."""

    head: str
    key: str
    form: str = "{:.3f}"
    factor: float = 1


MS = partial(Column, form="{:.2f}", factor=1e3)
MB = partial(Column, form="{:.3f}", factor=1e-6)
SHARE = partial(Column, form="{:.1%}")
RATIO = (Column("ratio", "ratio"), Column("from", "ratio_low"), Column("to", "ratio_high"))


def table(
    title: str, columns: Sequence[Column], rows: Sequence[Row], name: Callable[[Row], str]
) -> str:
    """A line per row, whose first cell is its name."""
    lines = [[title, *(column.head for column in columns)]]
    lines += [[name(row), *(_cell(row, column) for column in columns)] for row in rows]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join(_line(line, widths) for line in lines)


def _line(cells: Sequence[str], widths: Sequence[int]) -> str:
    first, *others = (f"{cell:>{n}}" for cell, n in zip(cells, widths, strict=True))
    return "  ".join([cells[0].ljust(len(first)), *others]).rstrip()


def _cell(row: Row, column: Column) -> str:
    value = row.get(column.key)
    return "" if value is None else column.form.format(value * column.factor)
