"""Add-ons can be taken out: linters and tests pass without them."""

import random
import subprocess
import sys
from pathlib import Path

import pytest

from nnmpi.addons import ADD_ONS

ROOT = Path(__file__).resolve().parents[2]


def test_without_two_of_them() -> None:
    for name in random.sample([*ADD_ONS], 2):
        without(name, "--brief")


@pytest.mark.long
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("name", ADD_ONS)
def test_without_any_of_them(name: str) -> None:
    without(name)


def without(*arguments: str) -> None:
    command = [sys.executable, "scripts/without.py", *arguments]
    run = subprocess.run(command, cwd=ROOT, check=False, capture_output=True, text=True)
    print(run.stdout, run.stderr)
    assert run.returncode == 0, arguments
