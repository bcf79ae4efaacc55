"""Who writes what of a checkpoint, and values as JSON."""

import json
from typing import Any

import numpy as np
import pytest

from nnmpi.nn.place import Place, whole
from nnmpi.run.checkpoints.divide import LEAST, RangeType, divided
from nnmpi.run.checkpoints.values import as_json, from_json

SUMS = {"exp_avg": "float32", "exp_avg_sq": "float32"}


def of(path: str, lo: int, hi: int, n: int, sums: dict[str, str] | None = None) -> RangeType:
    place = Place(path, (n,), whole((n,)))
    return RangeType(place, (0,), lo, hi, 0, "float32", SUMS if sums is None else sums)


@pytest.mark.parametrize("ranks", [1, 2, 3, 8])
def test_each_number_is_written_once_and_copies_are_shared(ranks: int) -> None:
    """Large and small tensors of all ranks, a slice of each rank, and some of half of them."""
    sizes = {f"copies.{i}": 10_000 * (i + 1) ** 3 for i in range(8)}
    half = max(ranks // 2, 1)
    owned = [
        [
            *(of(path, 0, n, n) for path, n in sizes.items()),
            of("slices", 1000 * rank, 1000 * rank + 1000, 1000 * ranks),
            *([of("half", 0, 777, 777)] if rank < half else []),
            of("buffer", 0, 50, 50, {}),
        ]
        for rank in range(ranks)
    ]
    parts = divided(owned)
    left = {**sizes, "slices": 1000 * ranks, "half": 777, "buffer": 50}
    for rank, there in enumerate(parts):
        for one in there:
            left[one.place.path] -= one.hi - one.lo
            whole_ones = [own for own in owned[rank] if own.place == one.place]
            assert any(own.lo <= one.lo and one.hi <= own.hi for own in whole_ones)
    assert {*left.values()} == {0}
    assert ["buffer" in {one.place.path for one in there} for there in parts] == [
        rank == 0 for rank in range(ranks)
    ]
    sums = [sum(one.size for one in there) for there in parts]
    assert max(sums) - min(sums) < 2 * LEAST + 12_000


@pytest.mark.parametrize(
    "value",
    [
        *(0.1 + 0.2, 5e-324, -0.0, float("inf"), float("-inf"), 10**30, True, None, "", "\udcff"),
        *((), (1, (2.0, "x")), [(), []], {"tuple": 1}, {"dict": {"numpy": 2}}, {"a": 1, "dict": 2}),
        *(np.float32(0.1), np.float64(0.1), np.int8(-3), np.bool_(True), np.float16("nan")),
    ],
    ids=repr,
)
def test_values_come_back_as_they_were(value: Any) -> None:
    text = json.dumps(as_json(value, []), allow_nan=False)
    found = from_json(json.loads(text), ())
    assert repr(found) == repr(value)
    assert type(found) is type(value)
