"""Names of nnmpi that are loaded when they are used first, so that defining a model is quick."""

import ast
import importlib
from pathlib import Path
from types import ModuleType

import pytest
from helpers.programs import printed

import nnmpi
from nnmpi.autograd import torch_names

FUNCTIONS = [nnmpi.nn.functional] if "functional" in nnmpi.nn._ON_USE else []  # of an add-on
PACKAGES = (nnmpi, nnmpi.autograd, nnmpi.nn, *FUNCTIONS)
NAMES = [(package, name) for package in PACKAGES for name in package._ON_USE]


def on_use() -> dict[str, str]:
    """Where the names of nnmpi are that it loads on use, its own too: "module" or "module:name"."""
    own = {name: getattr(nnmpi, name) for name in nnmpi._OWN_ON_USE}
    return nnmpi._ON_USE | {
        name: value.__name__ if isinstance(value, ModuleType) else f"{value.__module__}:{name}"
        for name, value in own.items()
    }


@pytest.mark.parametrize("package", PACKAGES)
def test_type_checkers_know_the_same_names(package: ModuleType) -> None:
    text = Path(str(package.__file__)).read_text(encoding="utf-8")
    branches = (n for n in ast.parse(text).body if isinstance(n, ast.If))
    (branch,) = (n for n in branches if ast.unparse(n.test).endswith("TYPE_CHECKING"))
    imports = [n for n in branch.body if isinstance(n, ast.ImportFrom)]
    assert {a.name: n.module for n in imports for a in n.names} == {
        name: where.partition(":")[0] if ":" in where else where.rpartition(".")[0]
        for name, where in (on_use() if package is nnmpi else package._ON_USE).items()
        # modules of nn that a star import does not give are imported by their names
        if package is nnmpi or ":" in where or name in package.__all__
    }


def test_type_checkers_know_the_methods_that_are_loaded_on_use() -> None:
    text = Path(str(torch_names.__file__)).read_text(encoding="utf-8")
    (names,) = (n for n in ast.parse(text).body if isinstance(n, ast.ClassDef))
    (branch,) = (n for n in names.body if isinstance(n, ast.If))
    imports = [n for n in branch.body if isinstance(n, ast.ImportFrom)]
    assert {a.name for n in imports for a in n.names} == {*torch_names.METHODS_ON_USE}


@pytest.mark.parametrize("name", [*torch_names.METHODS_ON_USE])
def test_method_is_what_its_module_has(name: str) -> None:
    path, _, attribute = torch_names.METHODS_ON_USE[name].partition(":")
    assert attribute == name
    assert getattr(nnmpi.zeros(2), name).__func__ is getattr(importlib.import_module(path), name)


@pytest.mark.parametrize(("package", "name"), NAMES)
def test_name_is_what_its_module_has(package: ModuleType, name: str) -> None:
    path, _, attribute = package._ON_USE[name].partition(":")
    module = importlib.import_module(path)
    assert getattr(package, name) is (getattr(module, attribute) if attribute else module)
    assert name in dir(package)


@pytest.mark.parametrize("package", [nnmpi, nnmpi.nn, *FUNCTIONS])
def test_a_star_import_has_them(package: ModuleType) -> None:
    where_of = on_use() if package is nnmpi else package._ON_USE
    names = {name for name, where in where_of.items() if ":" in where and "." not in name}
    found: dict[str, object] = {}
    exec(f"from {package.__name__} import *", found)
    assert {*found} >= names


def test_models_are_defined_without_what_trains_and_draws_them() -> None:
    program = (
        "import sys, nnmpi; from nnmpi import nn, optim\n"
        "model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))\n"
        "loss = nn.CrossEntropyLoss()(model(nnmpi.randn(5, 4)), nnmpi.tensor([0, 1, 2, 0, 1]))\n"
        "loss.backward(); optim.Adam(model.parameters()).step()\n"
        "folders = {m.split('.')[1] for m in sys.modules if m.startswith('nnmpi.')}\n"
        "print(*sorted(folders & {'parallel', 'planning', 'run'}))"
    )
    assert printed(program) == ""


def test_a_loop_of_steps_shares_no_memory() -> None:
    program = (
        "import sys, nnmpi; from nnmpi import nn, optim\n"
        "model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))\n"
        "adam, x, y = optim.Adam(model.parameters()), nnmpi.randn(5, 4), nnmpi.tensor([0] * 5)\n"
        "for _ in range(2):\n"
        "    adam.zero_grad(); nn.CrossEntropyLoss()(model(x), y).backward(); adam.step()\n"
        "model.eval(), model(x.detach()), model.state_dict()\n"
        "print(*sorted(m for m in sys.modules if m.startswith('nnmpi.addons.torchlike.memory')))"
    )
    assert printed(program) == ""


def test_a_plain_run_loads_no_add_on() -> None:
    program = (
        "import sys, nnmpi\n"
        "from nnmpi.addons import ADD_ONS; from nnmpi.comm import thread_ranks\n"
        "from nnmpi.io.output import NullReport\n"
        "config = nnmpi.Config(model='iris-mlp', data='iris', steps=1)\n"
        "fit = lambda comm: nnmpi.Trainer(config, comm=comm).fit(NullReport()) and None\n"
        "thread_ranks.run(2, fit)\n"
        "used = [m for m in sys.modules if not m.startswith('nnmpi.options.')]\n"
        "used = [f'{m}.' for m in used if not m.endswith('.options')]\n"
        "for name, a in ADD_ONS.items():\n"
        "    used = [m for m in used if m != f'nnmpi.addons.{name}.']  # which is empty\n"
        "    if any(m.startswith(f'{of}.') for m in used for of in a.modules): print(name)"
    )
    assert printed(program) == ""


def test_packages_need_no_import_of_their_own() -> None:
    used = "nnmpi.data.load, nnmpi.metrics.accuracy, nnmpi.parallel.mesh, nnmpi.run.trainer"
    assert printed(f"import nnmpi; print(len([{used}]))") == "4"


ROOT = Path(nnmpi.__file__).parent
STUBS = sorted(path.relative_to(ROOT).with_suffix("") for path in ROOT.rglob("*.pyi"))


@pytest.mark.parametrize("stub", STUBS, ids=str)
def test_type_checkers_read_of_a_module_what_programs_import(stub: Path) -> None:
    parts = stub.parts[:-1] if stub.name == "__init__" else stub.parts
    text = (ROOT / stub.with_suffix(".pyi")).read_text(encoding="utf-8")
    module = importlib.import_module(".".join(("nnmpi", *parts)))
    assert text == f"from {module.__name__} import *\n"
