"""What scripts/explore prints of a case that fails repeats the case."""

import pytest

from simulation.__main__ import script
from simulation.case import Case, Fault, Sleep

PLAIN = Case("ring", kills=(Fault(0, "start", 1, 50),), drawn=())
CASES = {
    "a death": PLAIN,
    "a rank asleep": PLAIN._replace(asleep=Sleep(1, "start", 1, 5, 30)),
    "a seed": Case("ring", 3, late=0.5),
}


@pytest.mark.parametrize("name", CASES)
def test_the_script_of_a_case_runs(name: str) -> None:
    text = script(CASES[name])
    exec(text, {})
    said = text.partition("verdict(")[2][:-2]
    assert eval(said, {"Case": Case, "Fault": Fault, "Sleep": Sleep}) == CASES[name]
