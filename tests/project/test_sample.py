"""Which cases run: samples of large tables, the quick tests and the rest, parts of all; and what
they draw."""

from itertools import product
from types import SimpleNamespace

import pytest
from helpers.mpijob import ROOT
from helpers.sample import EVERY_CASE, is_of_part, sampled
from helpers.selection import ALONE, QUICK_CASES, Selection, quick_cases

import nnmpi
from nnmpi.nn.seeding import FIRST, seed_state

TEXT = """\
# a remark
tests/a.py::test_long
tests/a.py::test_of_cases
    + one
    + x[2] y
tests/b.py::test_alone
    + -
tests/b.py::test_many
    - slow
"""


def test_a_sample_has_each_value_of_an_argument_that_has_few(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Every second case alone would have one of the two letters."""
    cases = [SimpleNamespace(params={"many": m, "few": f}) for m, f in product(range(9), "xy")]
    monkeypatch.delenv(EVERY_CASE, raising=False)
    chosen = sampled("test_a", 2, cases)
    assert {case.params["few"] for case in chosen} == {"x", "y"}
    assert len(chosen) == 9 + 1
    monkeypatch.setenv(EVERY_CASE, "1")
    assert sampled("test_a", 2, cases) == cases


def test_costly_tests_are_left_to_the_rest_but_for_cases_that_are_named() -> None:
    cases = {
        ("tests/a.py::test_long", ALONE): False,
        ("tests/a.py::test_of_cases", "one"): True,
        ("tests/a.py::test_of_cases", "x[2] y"): True,
        ("tests/a.py::test_of_cases", "other"): False,
        ("tests/b.py::test_alone", ALONE): True,
        ("tests/b.py::test_many", "slow"): False,
        ("tests/b.py::test_many", "any"): True,
        ("tests/b.py::test_cheap", ALONE): True,
    }
    costly = quick_cases(TEXT)
    assert {case: Selection(costly, rest=False).has(*case) for case in cases} == cases
    assert all(Selection(costly, quick=False).has(*case) != cases[case] for case in cases)
    assert all(Selection(costly).has(*case) for case in cases)


def test_a_case_is_in_one_of_the_parts_of_all() -> None:
    for name in ("tests/a.py::test_a", "tests/a.py::test_b[1]"):
        assert sum(is_of_part(name, f"{i}/3") for i in (1, 2, 3)) == 1


@pytest.mark.all_add_ons
def test_the_tests_that_the_table_of_quick_cases_names_are_there() -> None:
    """A test that was renamed would be a quick test again, however long it takes."""
    for test in quick_cases(QUICK_CASES.read_text(encoding="utf-8")):
        path, _, name = test.partition("::")
        assert f"\ndef {name}(" in (ROOT / path).read_text(encoding="utf-8"), test


@pytest.mark.parametrize("draws", [1, 2])
def test_a_test_draws_what_it_would_in_a_new_process(draws: int) -> None:
    """Not what follows on the draws of the tests that happened to run before it."""
    assert seed_state.get() == FIRST
    nnmpi.randn(draws)
