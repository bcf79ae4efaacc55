"""Shared by the tests of benchmarks: their folder, the importing fixture, and refusals."""

from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"
Import = Callable[[str], ModuleType]


def refusal(parse: Callable[[], object], capsys: pytest.CaptureFixture[str]) -> str:
    """What is printed to stderr, and nothing to stdout, where unusable flags are parsed."""
    with pytest.raises(SystemExit) as ended:
        parse()
    assert ended.value.code == 2
    printed = capsys.readouterr()
    assert not printed.out
    return printed.err
