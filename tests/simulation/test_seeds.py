"""Drawn cases keep what faults.md here promises; scripts/explore draws more."""

import re

import pytest

from simulation.case import Case
from simulation.draw import drawn_case
from simulation.layouts import DRAWN
from simulation.run import run
from simulation.verdict import verdict

BLOCKS, FIXED = 20, 15  # blocks of seeds, so that processes share them
LATE = {"order": "near", "late": 0.3, "buffered": 0.5}


def judge(seed: int) -> None:
    """Fails with the command that shows more of a failing seed."""
    result = verdict(drawn_case(seed))
    if result.is_bad:
        pytest.fail(f"scripts/explore --seed {seed}: {result.kind}: {result.text}")


def turns(case: Case) -> list[tuple[int, str]]:
    """The turns of a run, without the lengths of messages: some tell of measured memory as text."""
    ended = run(case)
    assert ended.error is None
    return [(rank, re.sub(r"\d+ bytes", "bytes", what)) for rank, what in ended.scheduler.trace]


@pytest.mark.parametrize("block", range(BLOCKS))
@pytest.mark.one_in(5)
def test_fixed_seeds(block: int) -> None:
    for seed in range(block * FIXED, (block + 1) * FIXED):
        judge(seed)


@pytest.mark.parametrize("name", sorted({name for name in DRAWN if not DRAWN[name].saves}))
@pytest.mark.one_in(10)
def test_a_case_is_repeated_turn_by_turn(name: str) -> None:
    first, second = (turns(Case(name, seed=1, **LATE)) for _ in range(2))
    assert first == second


def test_another_seed_gives_other_turns() -> None:
    first, other = (turns(Case("ring", seed, **LATE)) for seed in (1, 2))
    assert first != other
