"""Formats ranks, cores and other numbers as short text, such as "0-3, 8"."""

from collections.abc import Iterable

import numpy as np


def ranks_text(ranks: tuple[int, ...]) -> str:
    """Returns ranks as text: "0-3, 8, 10", "10 to 1022 in steps of 4"."""
    step = ranks[1] - ranks[0] if len(ranks) > 2 else 0
    if step > 1 and ranks == (*range(ranks[0], ranks[-1] + 1, step),):
        return f"{ranks[0]} to {ranks[-1]} in steps of {step}"
    texts = [
        f"{a}-{b}" if b > a + 1 else ", ".join(map(str, range(a, b + 1))) for a, b in runs(ranks)
    ]
    return ", ".join(texts if len(texts) <= 5 else [*texts[:3], f"... {texts[-1]}"])


def runs(numbers: Iterable[int]) -> list[tuple[int, int]]:
    """Returns (first, last) of each run of consecutive numbers."""
    values = np.fromiter(numbers, int)
    if (np.diff(values) < 1).any():
        values = np.unique(values)
    ends = np.flatnonzero(np.diff(values) > 1)
    starts, stops = [0, *(ends + 1).tolist()], [*ends.tolist(), len(values) - 1]
    return (
        [*zip(values[starts].tolist(), values[stops].tolist(), strict=True)] if values.size else []
    )
