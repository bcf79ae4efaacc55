"""Each mutant is found by the case that is kept with it; scripts/explore --mutants draws others."""

import pytest
from helpers.mpijob import ROOT

from simulation import scheduler
from simulation.case import Case
from simulation.mutant_table import MUTANTS
from simulation.mutants import Mutant, mutated
from simulation.verdict import undisturbed, verdict

MOST_TURNS = 8_000  # enough where nothing is defective

KILLED = [mutant for mutant in MUTANTS if isinstance(mutant.killed_by, Case)]
KILLED_BY_TESTS = [
    mutant for mutant in MUTANTS if isinstance(mutant.killed_by, str) and mutant.killed_by
]


@pytest.mark.parametrize("mutant", KILLED, ids=lambda mutant: mutant.name)
@pytest.mark.one_in(5)
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # files stay open
def test_a_mutant_is_found_by_its_case(mutant: Mutant, monkeypatch: pytest.MonkeyPatch) -> None:
    case = mutant.killed_by
    assert isinstance(case, Case)
    undisturbed(case.layout)  # without the defect
    monkeypatch.setattr(scheduler, "MOST_TURNS", MOST_TURNS)
    if case != Case(case.layout, drawn=()):  # else it is the undisturbed run
        plain = verdict(case)
        assert not plain.is_bad, plain.text
    with mutated(mutant) as reached:
        assert verdict(case).is_bad
    assert reached.times


@pytest.mark.parametrize("mutant", KILLED_BY_TESTS, ids=lambda mutant: mutant.name)
def test_another_test_that_finds_a_mutant_exists(mutant: Mutant) -> None:
    files = (ROOT / "tests").rglob("*.py")
    assert any(f"def {mutant.killed_by}(" in path.read_text(encoding="utf-8") for path in files)


def test_the_page_counts_them_and_none_is_left() -> None:
    equal = sum(bool(mutant.equal) for mutant in MUTANTS)
    assert len(MUTANTS) == len(KILLED) + len(KILLED_BY_TESTS) + equal
    file = ROOT / "tests" / "simulation" / "faults.md"
    page = " ".join(file.read_text(encoding="utf-8").split())
    assert (
        f"Of {len(MUTANTS)} defects that are put into the program cases find {len(KILLED)}, and "
        f"other tests {len(KILLED_BY_TESTS)}; {equal} change nothing."
    ) in page
