"""Samples of large tables are the same in each run, and have each value of an argument."""

from itertools import product
from types import SimpleNamespace
from typing import Any

import pytest
from helpers.sample import EVERY_CASE, one_in, sampled


@pytest.fixture
def _is_sample(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(EVERY_CASE, raising=False)


def items(name: str, *counts: int) -> list[Any]:
    """The cases of a test whose arguments have so many values each."""
    mark = SimpleNamespace(args=(4,))
    return [
        SimpleNamespace(
            path="test_of.py",
            originalname=name,
            callspec=SimpleNamespace(indices=dict(zip("abc", at, strict=False))),
            get_closest_marker=lambda _: mark,
        )
        for at in product(*map(range, counts))
    ]


@pytest.mark.usefixtures("_is_sample")
@pytest.mark.parametrize("n", [1, 3, 5])
def test_one_in_n_whatever_the_name_and_another_one_for_others(n: int) -> None:
    found = {name: one_in(n, range(20), name) for name in map(str, range(50))}
    assert all(len(one) in (20 // n, -(-20 // n)) for one in found.values())
    assert {k for one in found.values() for k in one} == {*range(20)}
    assert all(one_in(5, range(k), str(k)) for k in range(1, 5))
    assert one_in(5, (), "nothing") == []


def test_all_with_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(EVERY_CASE, "1")
    assert one_in(5, range(20), "any") == [*range(20)]


@pytest.mark.usefixtures("_is_sample")
def test_each_value_of_an_argument_is_in_a_case() -> None:
    for name, counts in product(map(str, range(20)), ((8, 2), (3, 7), (2, 2, 2))):
        whole = items(name, *counts)
        found = sampled(whole)
        assert len(found) < len(whole)
        seen = {at for item in found for at in item.callspec.indices.items()}
        assert seen == {at for item in whole for at in item.callspec.indices.items()}


@pytest.mark.usefixtures("_is_sample")
def test_of_cases_that_differ_in_one_argument_one_in_n_is_chosen() -> None:
    assert len(sampled(items("alone", 20))) == 5
