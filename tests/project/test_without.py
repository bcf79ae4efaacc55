"""Add-ons can be taken out: linters and tests pass without them."""

import json
import runpy
import shutil
from pathlib import Path
from xml.etree import ElementTree

import pytest
from helpers.mpijob import ROOT
from helpers.programs import python

from nnmpi.addons import ADD_ONS

SCRIPT = runpy.run_path(str(ROOT / "scripts" / "without.py"))
pytestmark = pytest.mark.all_add_ons  # a tree without one is watched already

PYTEST = "-m", "pytest", "-q", "-n", "0", "-p", "left_out"


@pytest.mark.parametrize("n", [1, 2, 25, 26])
def test_each_add_on_has_its_turn(n: int) -> None:
    names = [*map(str, range(n))]
    turns = [name for day in range(900, 900 + n) for name in SCRIPT["turn"](names, day)]
    assert sorted(turns) == sorted(names * 2)


@pytest.mark.parametrize(("asking", "status"), [(2, 0), (3, 1)])
def test_no_more_than_a_tenth_of_tests_may_be_left_out(
    asking: int, status: int, tmp_path: Path
) -> None:
    tests = [f"def test_{i}({'gone' if i < asking else ''}): pass" for i in range(20)]
    (tmp_path / "test_some.py").write_text("\n".join(tests), encoding="utf-8")
    gone = tmp_path / "gone.json"
    gone.write_text(json.dumps({"fixtures": ["gone"]}), encoding="utf-8")
    path = {"PYTHONPATH": str(ROOT / "scripts"), "NNMPI_GONE": str(gone)}
    run = python(*PYTEST, "test_some.py", folder=tmp_path, **path)
    assert f"left out {asking} of 20 tests" in run.out
    assert run.status == status


GONE = {
    "tables": {
        "names": ["nn.Gone", "Tensor.gone", "Trainer.gone"],
        **{key: ["gone"] for key in ("models", "datasets")},
        **{key: ["gone"] for key in ("layout_axes", "commands")},
    },
    "memory": ["gone"],
    "options": ["gone"],
    "values": {"optimizer": ["gone"]},
    "modules": ["nnmpi.addons.gone"],
    "fixtures": ["gone"],
}
"""What an add-on would have brought."""

ASKING = {
    "a layer": "nnmpi.nn.Gone",
    "an import of a layer": "from nnmpi.nn import Gone",
    "a method of a tensor": "nnmpi.zeros(2).gone()",
    "a method of a Trainer": "nnmpi.metrics.method_of_trainer()",
    "memory": "recording.memory_needed('gone')",
    "a model": "assert main(['--model', 'gone:3']) == 0",
    "data": "assert main(['--data', 'gone']) == 0",
    "a flag": "assert main(['--gone', '3']) == 0",
    "a value of a flag": "assert main(['--optimizer', 'gone']) == 0",
    "an option": "nnmpi.Config(gone=3)",
    "a value": "nnmpi.Config(optimizer='gone')",
    "a key of a file": "nnmpi.cli._by_name({'gone': 3})",
    "an axis": "nnmpi.Config(layout='gone:tp')",
    "a way": "assert main(['--layout', '0=gone', '--tp', '2']) == 0",
    "a module": "import nnmpi.addons.gone.layers",
    "a command": "program('-m', 'nnmpi', 'gone')",
    "a program": "program('-c', 'import nnmpi; nnmpi.nn.Gone')",
    "ranks": "assert mpijob.run(2, '-c', 'import nnmpi; nnmpi.nn.Gone').status == 0",
}
"""Tests that ask for it."""

PASSING = {
    "it is refused": "with pytest.raises(AttributeError): nnmpi.nn.Gone",
    "a class has Python's finder": "assert Finds().find('json')",
}
"""Tests that pass, one of which asks for it."""

FAILING = {
    "a wrong number": "assert 1 + 1 == 3",
    "its name in a message": "raise ValueError('gone is not an option; no nnmpi.addons.gone')",
    "what nobody has": "nnmpi.nn.Other",
    "nnmpi imports it": "nnmpi.metrics.wants()",
    "nnmpi imports a layer": "nnmpi.metrics.wants_layer()",
    "nnmpi asks for a method": "nnmpi.metrics.wants_method(nnmpi.zeros(2))",
}
"""Tests that fail for another reason."""

HEAD = """
import subprocess, sys
from importlib.machinery import PathFinder
import nnmpi, pytest
from helpers import mpijob
from nnmpi.autograd import recording
from nnmpi.train import main

class Finds:
    find = PathFinder.find_spec

def program(*arguments):
    subprocess.run([sys.executable, *arguments], check=True)
"""
WANTS = """
def wants():
    import nnmpi.addons.gone

def wants_layer():
    from nnmpi.nn import Gone

def wants_method(t):
    t.gone()

def method_of_trainer():
    from nnmpi.autograd.torch_names import NAMES

    NAMES.needed("Trainer.gone")
"""
"""Functions of a module of core that uses the add-on without a table."""


FIXTURES = (
    HEAD
    + """
@pytest.fixture(scope="module")
def raised():
    nnmpi.nn.Gone

@pytest.fixture(scope="module")
def status():
    return subprocess.run([sys.executable, "-m", "nnmpi", "gone"]).returncode

def test_fixture_1(raised): pass
def test_fixture_2(raised): pass
def test_fixture_3(status): assert status == 0
def test_fixture_4(status): assert status == 0
def test_fixture_5(): assert 1 + 1 == 3
"""
)
"""Tests with fixtures that are made once, and one without."""


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """What became of these tests in a tree without the add-on, by name."""
    tree = tmp_path_factory.mktemp("tree")
    shutil.copytree(ROOT / "nnmpi", tree / "nnmpi")
    shutil.copytree(ROOT / "scripts", tree / "scripts")
    with (tree / "nnmpi" / "metrics.py").open("a", encoding="utf-8") as file:
        file.write(WANTS)
    tests = (f"def test_{k}():\n    {body}\n" for k, body in enumerate(BODIES.values()))
    texts = {
        "some": "\n".join([HEAD, *tests]),
        "asks": "from nnmpi.nn import Gone",
        "fixtures": FIXTURES,
    }
    for name, text in (texts | {"fails": "from nnmpi.nn import Other"}).items():
        (tree / f"test_{name}.py").write_text(text, encoding="utf-8")
    variables = SCRIPT["watched"](tree, GONE)
    variables["PYTHONPATH"] += f":{ROOT / 'tests'}"
    options = "--junitxml", "outcomes.xml", "--continue-on-collection-errors"
    run = python(*PYTEST, *options, folder=tree, **variables)
    print(run.out, run.err)
    cases = ElementTree.parse(tree / "outcomes.xml").iter("testcase")
    return {case.attrib["name"]: case[0].tag if len(case) else "passed" for case in cases}


BODIES = ASKING | PASSING | FAILING


@pytest.mark.parametrize(
    ("how", "outcome"),
    [
        *((how, "skipped") for how in ASKING),
        *((how, "passed") for how in PASSING),
        *((how, "failure") for how in FAILING),
    ],
)
def test_only_a_test_that_fails_and_asks_for_what_is_gone_is_left_out(
    how: str, outcome: str, outcomes: dict[str, str]
) -> None:
    assert outcomes[f"test_{[*BODIES].index(how)}"] == outcome


def test_a_file_that_asks_for_what_is_gone_is_left_out(outcomes: dict[str, str]) -> None:
    assert (outcomes["test_asks"], outcomes["test_fails"]) == ("skipped", "error")


def test_a_fixture_asks_for_all_tests_that_use_it(outcomes: dict[str, str]) -> None:
    found = [outcomes[f"test_fixture_{k}"] for k in range(1, 6)]
    assert found == ["skipped"] * 4 + ["failure"]


@pytest.mark.long
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("name", ADD_ONS)
def test_without_any_of_them(name: str) -> None:
    run = python("scripts/without.py", name, folder=ROOT, timeout=1200)
    print(run.out, run.err)
    assert run.status == 0
