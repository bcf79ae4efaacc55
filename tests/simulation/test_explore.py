"""What scripts/explore prints of a case that fails repeats the case."""

import ast

import pytest

from simulation.__main__ import script
from simulation.case import Case, Fault, Sleep
from simulation.layouts import LAYOUTS

PLAIN = Case("ring", kills=(Fault(0, "start", 1, 50),), drawn=())
CASES = {
    "a death": PLAIN,
    "a death of a layout with options": PLAIN._replace(layout="zero 1, backups"),
    "a rank asleep": PLAIN._replace(asleep=Sleep(1, "start", 1, 5, 30)),
    "a seed": Case("ring", 3, late=0.5),
}


@pytest.mark.parametrize("name", LAYOUTS)
def test_a_script_of_any_layout_says_all_in_itself(name: str) -> None:
    text = script(PLAIN._replace(layout=name))
    call = ast.parse(text).body[-1]
    assert isinstance(call, ast.Expr)
    if "simulation" not in text:
        assert isinstance(call.value, ast.Call)
        options = ast.literal_eval(call.value.args[1])
        assert not {"save_every", "callbacks", "build", "given"} & options.keys()


@pytest.mark.parametrize("name", CASES)
def test_the_script_of_a_case_runs(name: str) -> None:
    text = script(CASES[name])
    exec(text, {})
    assert ("simulation" not in text) == name.startswith("a death")
