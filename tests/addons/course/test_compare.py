"""What the course says of numbers that differ, and that NaN is never right."""

import numpy as np
import pytest

from classroom import apart, counted, differs, number
from classroom.compare import times


@pytest.mark.parametrize(
    ("got", "expected", "words"),
    [
        (1.5, 1.25, "is 1.5, expected 1.25 (1.2 times too large)"),
        (1234567.0, 1234568.0, "is 1,234,567, expected 1,234,568 (1.000001 times too small)"),
        (0.1 + 0.2, 0.3, ""),
        (-2.0, 1.0, "(-2 times that)"),
        (0.0, 1.0, "is 0, expected 1"),
        (np.full(3, 2.0), np.ones(3), "(all of it is 2 times too large); 3 of 3 elements"),
        (np.array([1.0, 2.0]), np.ones(2), "[1] is 2, expected 1; 1 of 2 elements are wrong"),
        (np.array([1.0, np.nan]), np.ones(2), "[1] is nan, expected 1 (it has numbers that are"),
        (float("nan"), 1.0, "is nan, expected 1"),
        (float("inf"), 1.0, "is inf, expected 1"),
    ],
)
def test_a_difference_shows_in_digits_and_as_a_factor(
    got: float, expected: float, words: str
) -> None:
    finding = differs(0, got, np.asarray(expected), "x")
    assert (finding is not None) == bool(words)
    assert words in str(finding)


def test_counts_are_shown_to_the_last_digit() -> None:
    assert str(counted(1, 1234568, 1234567, "bytes")).startswith(
        "rank 1: bytes: 1,234,568, expected 1,234,567 (1.000001 times too large)"
    )
    assert str(counted(1, 256, 128, "bytes")).endswith("(2 times too large)")
    assert str(counted(1, 0, 128, "bytes")).endswith("expected 128")


@pytest.mark.parametrize("value", [float("nan"), float("inf"), "1", None, np.ones(1), 1j])
def test_what_is_no_number_is_no_time(value: object) -> None:
    assert number(0, value, "took") is not None
    assert number(0, 1.5, "took") is None


def test_digits_go_as_far_as_numbers_agree() -> None:
    assert apart(0.1 + 0.2, 0.3) == ("0.30000000000000004", "0.29999999999999999")
    assert times(1 + 1e-9) == "1.000000001 times too large"
