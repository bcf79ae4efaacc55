"""Each row of tests/simulation/faults.md has a test, which exists."""

import re

import pytest
from helpers.mpijob import ROOT

PAGE = (ROOT / "tests" / "simulation" / "faults.md").read_text(encoding="utf-8")
ROWS = [line for line in PAGE.splitlines() if line[:2] == "| "]
FILES = {path.name: path.read_text() for path in (ROOT / "tests").rglob("*.py")}


@pytest.mark.all_add_ons
@pytest.mark.parametrize("row", ROWS[1:], ids=lambda row: row[2:40])
def test_a_row_names_tests_that_exist(row: str) -> None:
    *_, tested, _ = row.split("|")
    names = re.findall(r"`(\w+(?:\.py)?)`", tested)
    assert names
    for name in names:
        assert name in FILES or any(f"def {name}(" in text for text in FILES.values()), name
