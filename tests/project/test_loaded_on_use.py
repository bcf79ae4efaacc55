"""Names of nnmpi that are loaded when they are used first, so that defining a model is quick."""

import ast
import importlib
from pathlib import Path

import pytest
from helpers.programs import printed

import nnmpi

INIT = Path(nnmpi.__file__)


def test_type_checkers_know_the_same_names() -> None:
    branches = (
        n for n in ast.parse(INIT.read_text(encoding="utf-8")).body if isinstance(n, ast.If)
    )
    (branch,) = (n for n in branches if ast.unparse(n.test) == "_TYPE_CHECKING")
    imports = [n for n in branch.body if isinstance(n, ast.ImportFrom)]
    assert {a.name: n.module for n in imports for a in n.names} == {
        name: where.partition(":")[0] if ":" in where else where.rpartition(".")[0]
        for name, where in nnmpi._ON_USE.items()
    }


@pytest.mark.parametrize("name", nnmpi._ON_USE)
def test_name_is_what_its_module_has(name: str) -> None:
    path, _, attribute = nnmpi._ON_USE[name].partition(":")
    module = importlib.import_module(path)
    assert getattr(nnmpi, name) is (getattr(module, attribute) if attribute else module)
    assert name in dir(nnmpi)


def test_models_are_defined_without_what_trains_and_draws_them() -> None:
    program = (
        "import sys, nnmpi; from nnmpi import nn, optim\n"
        "model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))\n"
        "loss = nn.CrossEntropyLoss()(model(nnmpi.randn(5, 4)), nnmpi.tensor([0, 1, 2, 0, 1]))\n"
        "loss.backward(); optim.Adam(model.parameters()).step()\n"
        "folders = {m.split('.')[1] for m in sys.modules if m.startswith('nnmpi.')}\n"
        "print(*sorted(folders & {'parallel', 'planning', 'run', 'sim'}))"
    )
    assert printed(program) == ""


def test_packages_need_no_import_of_their_own() -> None:
    used = "nnmpi.metrics.accuracy, nnmpi.parallel.mesh, nnmpi.run.trainer"
    assert printed(f"import nnmpi; print(len([{used}]))") == "3"
