"""Add-ons can be taken out: linters and tests pass without them."""

from pathlib import Path

import pytest
from helpers.mpijob import ROOT
from helpers.programs import python

from nnmpi.addons import ADD_ONS


def test_without_two_of_them() -> None:
    """One has options and tables of training, the other names alone."""
    for name in ("compression", "recurrent"):
        without(name, "--brief")


@pytest.mark.parametrize(("asking", "status"), [(2, 0), (3, 1)])
def test_no_more_than_a_tenth_of_tests_may_be_left_out(
    asking: int, status: int, tmp_path: Path
) -> None:
    tests = [f"def test_{i}({'gone' if i < asking else ''}): pass" for i in range(20)]
    (tmp_path / "test_some.py").write_text("\n".join(tests), encoding="utf-8")
    gone = {"NNMPI_GONE_OPTIONS": "", "NNMPI_GONE_NAMES": "gone"}
    command = ("-m", "pytest", "-q", "-p", "left_out", "test_some.py")
    run = python(*command, folder=tmp_path, **gone, PYTHONPATH=str(ROOT / "scripts"))
    assert f"left out {asking} of 20 tests" in run.out
    assert run.status == status


@pytest.mark.long
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("name", ADD_ONS)
def test_without_any_of_them(name: str) -> None:
    without(name)


def without(*arguments: str) -> None:
    run = python("scripts/without.py", *arguments, folder=ROOT, timeout=1200)
    print(run.out, run.err)
    assert run.status == 0, arguments
