"""Ranges of boxes, against the elements that they stand for: each box of small tensors, and each
part that contains it, in each order of the axes in memory."""

from collections.abc import Iterator
from itertools import combinations, combinations_with_replacement, permutations, product

import numpy as np
import pytest

from nnmpi.nn.place import Box, Range, whole
from nnmpi.parallel.model.moves import overlap, runs_of

SHAPES = (), (3,), (0, 2), (1, 4), (3, 2), (2, 3), (2, 2, 3), (3, 1, 2)
BY_AXES = [(shape, axes) for shape in SHAPES for axes in permutations(range(len(shape)))]


def boxes(part: Box, pairs: type = combinations) -> Iterator[Box]:
    """All boxes in a part; those with an empty side too if `pairs` may repeat a number."""
    yield from product(*([*pairs(range(a, b + 1), 2)] for a, b in part))


def numbered(shape: tuple[int, ...], part: Box, axes: tuple[int, ...]) -> list[int]:
    """The elements of a part in the order of memory, each by its number in the whole tensor."""
    numbers = np.arange(int(np.prod(shape))).reshape(shape)
    inside = numbers[tuple(slice(a, b) for a, b in part)]
    return inside.transpose(axes).ravel().tolist()


@pytest.mark.parametrize(("shape", "axes"), BY_AXES, ids=str)
def test_the_range_of_a_box_has_the_elements_of_the_range_of_its_part(
    shape: tuple[int, ...], axes: tuple[int, ...]
) -> None:
    for part in boxes(whole(shape), combinations_with_replacement):
        elements = numbered(shape, part, axes)
        for box in boxes(part, combinations_with_replacement):
            inside = numbered(shape, box, axes)
            before = [*np.cumsum([0, *(n in inside for n in elements)])]
            for n in range(len(elements) + 1):
                found = overlap(Range("w", part, n, len(elements)), box, axes)
                assert found == Range("w", box, before[n], len(inside)), (part, box, n)


@pytest.mark.parametrize(("shape", "axes"), BY_AXES, ids=str)
def test_runs_copy_the_elements_of_a_range_from_part_to_part(
    shape: tuple[int, ...], axes: tuple[int, ...]
) -> None:
    around = [*boxes(whole(shape))]
    for source, target in product(around[::3], around[::2]):
        box = tuple((max(a, c), min(b, d)) for (a, b), (c, d) in zip(source, target, strict=True))
        if any(a >= b for a, b in box):
            continue
        inside = numbered(shape, box, axes)
        had, needed = (numbered(shape, part, axes) for part in (source, target))
        for lo, hi in combinations(range(len(inside) + 1), 2):
            runs = runs_of(Range("w", box, lo, hi), source, target, axes)
            copied = [(s + k, t + k) for s, t, n in zip(*runs, strict=True) for k in range(n)]
            assert [had[s] for s, _ in copied] == inside[lo:hi], (source, target, lo, hi)
            assert [needed[t] for _, t in copied] == inside[lo:hi], (source, target, lo, hi)
            assert [*runs.source] == sorted(runs.source)
            for cut in range(1, len(copied)):
                halves = [runs.cut(0, cut), runs.cut(cut, len(copied))]
                again = [
                    (s + k, t + k)
                    for half in halves
                    for s, t, n in zip(*half, strict=True)
                    for k in range(n)
                ]
                assert again == copied, (source, target, lo, hi, cut)
