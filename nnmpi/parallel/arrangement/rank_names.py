"""Names of ranks, and of layers that many blocks have alike, for tables and drawings."""

import re
from collections.abc import Iterable
from typing import TypeVar

import numpy as np

Row = TypeVar("Row", bound=tuple[object, ...])

BLOCK = re.compile(r"(?<![^.])(\d+)\.")
"""The number of a block in the name of one of its layers."""


def numbers_of(ranks: tuple[int, ...]) -> str:
    """Ranks in words: 0-3, 8, 10; 10 to 1022 in steps of 4; 4-7, 12-15, 20-23, ... 252-255."""
    step = ranks[1] - ranks[0] if len(ranks) > 2 else 0
    if step > 1 and ranks == (*range(ranks[0], ranks[-1] + 1, step),):
        return f"{ranks[0]} to {ranks[-1]} in steps of {step}"
    runs = [
        f"{a}-{b}" if b > a + 1 else ", ".join(map(str, range(a, b + 1))) for a, b in _runs(ranks)
    ]
    return ", ".join(runs if len(runs) <= 5 else [*runs[:3], f"... {runs[-1]}"])


def alike_layers(rows: Iterable[Row]) -> list[tuple[str, Row]]:
    """Rows of which the first cell is the name of a layer, and a name for each.

    Rows that differ in the number of a block alone, h.0.fc and h.1.fc, are one, h.0-1.fc.
    """
    found: dict[tuple[object, ...], tuple[list[int], Row]] = {}
    for row in rows:
        before, *number = BLOCK.split(str(row[0]), maxsplit=1)
        key = (before, *number[1:], *row[1:])
        found.setdefault(key, ([], row))[0].extend(map(int, number[:1]))
    return [
        (BLOCK.sub(f"{_blocks(blocks)}.", str(row[0]), count=1), row)
        for blocks, row in found.values()
    ]


def _blocks(numbers: Iterable[int]) -> str:
    """Numbers of blocks in words: 0-3,5."""
    return ",".join(f"{a}-{b}" if b > a else str(a) for a, b in _runs(numbers))


def _runs(numbers: Iterable[int]) -> list[tuple[int, int]]:
    """The first and the last of each run of numbers that follow each other."""
    there = np.fromiter(numbers, int)
    if (np.diff(there) < 1).any():
        there = np.unique(there)
    ends = np.flatnonzero(np.diff(there) > 1)
    starts, stops = [0, *(ends + 1).tolist()], [*ends.tolist(), len(there) - 1]
    return [*zip(there[starts].tolist(), there[stops].tolist(), strict=True)] if there.size else []
