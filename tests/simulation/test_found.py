"""Cases that broke a promise once: what was wrong, and the smallest case that showed it."""

import tomllib
from pathlib import Path

import pytest

from simulation.mutant_table import case_of
from simulation.verdict import verdict

FOUND = tomllib.loads(Path(__file__).with_name("found.toml").read_text(encoding="utf-8"))


@pytest.mark.parametrize("what", FOUND)
def test_a_promise_that_was_broken_once(what: str) -> None:
    result = verdict(case_of(FOUND[what]))
    assert any(mark.mark == "dies" for mark in result.scheduler.marks)
    assert not result.is_bad, result.text
