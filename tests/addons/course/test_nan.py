"""NaN in place of a number gets no points: each comparison with it has to fail."""

import tomllib
from pathlib import Path

import pytest
from helpers.course import faults, solution

from classroom.remote import StudentProcess

NAN = """
import numpy as np


def as_nan(value):
    if isinstance(value, tuple):
        return as_nan(value[0]), *value[1:]
    if isinstance(value, np.ndarray | float | int | np.generic):
        return np.full(np.shape(value), np.nan)[()]
    if isinstance(value, list):
        return [as_nan(v) for v in value]
    if hasattr(value, "data"):
        value.data = as_nan(value.data)
    return value


def giving_nan(function):
    def call(*arguments, **named):
        result = function(*arguments, **named)
        for array in [*arguments, getattr(arguments[0], "values", None)]:
            if isinstance(array, np.ndarray) and array.dtype == float:
                array[...] = np.nan
        return as_nan(result)
    return call


NAME = giving_nan(NAME)
"""
NUMBERS = tomllib.loads(Path(__file__).with_name("nan.toml").read_text(encoding="utf-8"))
ROWS = [(a, f, check) for a, of in NUMBERS.items() for check, fs in of.items() for f in fs]


@pytest.mark.parametrize(("assignment", "name", "check"), ROWS)
def test_nan_gets_no_points(
    assignment: str, name: str, check: str, process: StudentProcess, tmp_path: Path
) -> None:
    text, adapters = solution(assignment).read_text(encoding="utf-8"), tmp_path / "adapters.py"
    adapters.write_text(text + NAN.replace("NAME", name), encoding="utf-8")
    fault = faults(assignment, adapters, process, check)[check]
    assert "nan" in fault
    assert "check itself failed" not in fault
