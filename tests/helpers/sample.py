"""What runs of large tables without --all: a sample that is the same in each run.

Which part of a table that is follows from its name, so that tests of the same layouts, each of
which tries a part of them, try different ones. Which of the sample `scripts/test` runs, and which
`scripts/test --rest`, is said by selection.py.
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


def is_of_part(name: str, part: str) -> bool:
    """True if the I-th of N parts of all tests, as I/N, has the one of this name."""
    i, _, n = part.partition("/")
    return crc32(name.encode()) % int(n) == int(i) - 1


def sampled(name: str, n: int, cases: Sequence[Any]) -> list[Any]:
    """One in n of the cases of a test of this name, and others until each value of an argument is
    in one, if an argument has no more values than these are cases.
    """
    chosen = {id(case) for case in one_in(n, cases, name)}
    values = [{(name, key(value)) for name, value in case.params.items()} for case in cases]
    counts = Counter(name for name, _ in set[Any]().union(*values))
    wanted = [{at for at in of_case if counts[at[0]] <= len(chosen)} for of_case in values]
    pairs = [*zip(cases, wanted, strict=True)]
    seen = {at for case, of_case in pairs if id(case) in chosen for at in of_case}
    for case, of_case in pairs:
        if not of_case <= seen:
            chosen.add(id(case))
            seen |= of_case
    return [case for case in cases if id(case) in chosen]


def key(value: Any) -> Any:
    """The value, or a number in its place if it has no hash; pytest numbers cases, not values."""
    try:
        return hash(value), value
    except TypeError:
        return id(value)
