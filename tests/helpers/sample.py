"""What runs of large tables without --all: a sample that is the same in each run.

Which part of a table that is follows from its name, so that tests of the same layouts, each of
which tries a part of them, try different ones.
"""

import os
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any, TypeVar
from zlib import crc32

T = TypeVar("T")
EVERY_CASE = "NNMPI_TEST_ALL"
"""The variable that is set with --all."""


def one_in(n: int, of: Iterable[T], name: str) -> list[T]:
    """Every n-th of these, at least one; with --all all of them."""
    found = [*of]
    if EVERY_CASE in os.environ:
        return found
    return found[crc32(name.encode()) % min(n, max(1, len(found))) :: n]


def sampled(items: list[Any]) -> list[Any]:
    """Tests without those cases that the mark `one_in` leaves out."""
    cases: dict[tuple[str, str], list[Any]] = {}
    for item in items:
        if item.get_closest_marker("one_in") and hasattr(item, "callspec"):
            cases.setdefault((str(item.path), item.originalname), []).append(item)
    left_out = set[int]()
    for (_, name), of_test in cases.items():
        (n,) = of_test[0].get_closest_marker("one_in").args
        chosen = with_values(of_test, {id(item) for item in one_in(n, of_test, name)})
        left_out |= {id(item) for item in of_test} - chosen
    return [item for item in items if id(item) not in left_out]


def with_values(of_test: Sequence[Any], chosen: set[int]) -> set[int]:
    """These cases, and others until each value of an argument is in one, if an argument has no more
    values than these are cases.
    """
    values = [
        {(name, key(value)) for name, value in case.callspec.params.items()} for case in of_test
    ]
    counts = Counter(name for name, _ in set[Any]().union(*values))
    wanted = [{at for at in of_case if counts[at[0]] <= len(chosen)} for of_case in values]
    cases = [*zip(of_test, wanted, strict=True)]
    seen = {at for item, of_case in cases if id(item) in chosen for at in of_case}
    for item, of_case in cases:
        if not of_case <= seen:
            chosen = chosen | {id(item)}
            seen |= of_case
    return chosen


def key(value: Any) -> Any:
    """The value, or a number in its place if it has no hash; pytest numbers cases, not values."""
    try:
        return hash(value), value
    except TypeError:
        return id(value)
