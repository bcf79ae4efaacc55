"""The wall between core and add-ons: core imports none, and each imports what its entry says."""

import ast
import re
import runpy
import shutil
from collections.abc import Iterator
from dataclasses import fields
from graphlib import TopologicalSorter
from pathlib import Path

import grimp
import pytest

import nnmpi
from nnmpi import addons
from nnmpi.addons import ADD_ONS
from nnmpi.autograd.torch_names import NAMES
from nnmpi.commands import COMMANDS
from nnmpi.nn import known_values
from nnmpi.options.features import OPTIONS

ROOT = Path(nnmpi.__file__).parents[1]

OF_OPTIONS = {
    table
    for path in (ROOT / "nnmpi").rglob("*.py")
    for table in re.findall(
        r'= (?:addons\.)?Table\(\s*"(\w+)"\s*\)\n"""By (?:an option|a feature|an axis)\b',
        path.read_text(encoding="utf-8"),
    )
}
"""The tables whose keys are options, or features of these, as their sentences say."""


@pytest.fixture(scope="module")
def imports() -> grimp.ImportGraph:
    return grimp.build_graph("nnmpi", exclude_type_checking_imports=True)


def add_on_of(module: str) -> str | None:
    return next((name for name, a in ADD_ONS.items() if is_in(module, a.modules)), None)


def is_in(module: str, folders: tuple[str, ...]) -> bool:
    return any(module == folder or module.startswith(f"{folder}.") for folder in folders)


@pytest.mark.parametrize("name", ADD_ONS)
def test_only_those_that_say_so_import_an_add_on(name: str, imports: grimp.ImportGraph) -> None:
    modules = {m for m in imports.modules if is_in(m, ADD_ONS[name].modules)}
    paths = [ROOT.joinpath(*module.split(".")) for module in ADD_ONS[name].modules]
    assert all(path.is_dir() or path.with_suffix(".py").is_file() for path in paths)
    users = {m for module in modules for m in imports.find_modules_that_directly_import(module)}
    users -= {*modules, "nnmpi", "nnmpi.nn"}  # for type checkers only: test_loaded_on_use
    others = {m for m in users if name not in ADD_ONS.get(add_on_of(m) or "", NONE).uses}
    assert not others, f"declare it in addons/{name}/addon.py of its user, or take the arrow out"


NONE = addons.AddOn(())


def test_nothing_of_add_ons_imports_in_a_circle(imports: grimp.ImportGraph) -> None:
    modules = [m for m in imports.modules if m.startswith("nnmpi.addons.")]
    order = TopologicalSorter({m: imports.find_modules_directly_imported_by(m) for m in modules})
    TopologicalSorter({name: a.uses for name, a in ADD_ONS.items()}).prepare()
    order.prepare()  # raises CycleError if there is one


def test_what_git_leaves_of_a_folder_is_no_add_on(tmp_path: Path) -> None:
    """Such as files of compiled modules, which it ignores."""
    here = Path(addons.__file__).parent
    for name in ("checks", "doctor"):
        (tmp_path / name / "__pycache__").mkdir(parents=True)
    for file in ("__init__.py", "doctor/addon.py"):
        shutil.copy(here / file, tmp_path / file)
    assert runpy.run_path(str(tmp_path / "__init__.py"))["ADD_ONS"].keys() == {"doctor"}


@pytest.mark.all_add_ons
def test_each_folder_of_an_add_on_is_named() -> None:
    folders = {path.parent.name for path in Path(addons.__file__).parent.glob("*/addon.py")}
    assert folders == ADD_ONS.keys() == {*addons.NAMES.split()}


def test_core_reads_no_option_of_an_add_on() -> None:
    of_parts = (fields(part.options) for part in OPTIONS.rows() if part.options)
    options = {field.name for of_part in of_parts for field in of_part}
    found = [
        (module, name)
        for path in sorted((ROOT / "nnmpi").rglob("*.py"))
        for module in (".".join(path.relative_to(ROOT).with_suffix("").parts),)
        for name in read_from_configs(path)
        if add_on_of(module) is None and name in options
    ]
    assert not found


def read_from_configs(path: Path) -> Iterator[str]:
    """Yields the attributes that a file reads from what it calls a config."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Attribute):
            *_, owner = ast.unparse(node.value).split(".")
            if owner in ("config", "c", "requested", "fitting", "PLAIN"):
                yield node.attr


@pytest.mark.parametrize("name", ADD_ONS)
def test_rows_are_where_the_entry_says(name: str) -> None:
    keys = {field.name for field in fields(nnmpi.Config)}
    keys |= {feature.name for part in OPTIONS.rows() for feature in part.features}
    for table, rows in ADD_ONS[name].rows.items():
        assert table not in OF_OPTIONS or rows.keys() <= keys
        for key, where in rows.items():
            value = addons.loaded(where)
            assert is_in(where.partition(":")[0], ADD_ONS[name].modules)
            assert ":" not in key or addons.loaded(key)  # the key is a class or an op
            if table == "names" and key.startswith(("nn.", "Tensor.")) and callable(value):
                assert where.startswith(known_values.OWN), f"of_step lacks the module of {where}"
    for module in (*ADD_ONS[name].of_step, *ADD_ONS[name].classes_of_step):
        assert addons.loaded(module)
        assert is_in(module, ADD_ONS[name].modules)


def test_no_two_add_ons_have_the_same_row() -> None:
    keys = [(t, key) for a in ADD_ONS.values() for t, rows in a.rows.items() for key in rows]
    assert len(keys) == len({*keys})


def test_each_command_is_of_core_or_of_one_add_on() -> None:
    of_add_ons = {m for a in ADD_ONS.values() for m in a.modules}
    assert [name for name in COMMANDS if f"nnmpi.{name}" not in of_add_ons] == ["train"]


def test_what_needs_an_add_on_that_is_not_there_says_so() -> None:
    with pytest.raises(AttributeError, match="write is of an add-on that is not here: install"):
        NAMES.needed("Trainer.write")


@pytest.mark.all_add_ons
def test_the_architecture_draws_where_each_add_on_hooks_in() -> None:
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    head, *lines = text.partition("\ncore  ")[2].partition("```")[0].splitlines()
    tables, names = head.index("its tables") + len("core  "), head.index("add-ons") + len("core  ")
    groups: list[tuple[list[str], list[str]]] = []
    for line in lines:
        if "◄─" in line:
            groups.append(([], []))
        groups[-1][0].extend(line[tables : names - 3].replace(",", "").split())
        groups[-1][1].extend(line[names:].split())
    *groups, (_, without_rows) = groups
    core = {
        table
        for path in (ROOT / "nnmpi").rglob("*.py")
        if path.parents[1].name != "addons" and path.parents[2].name != "addons"
        for table in re.findall(r'\bTable\(\s*"(\w+)"', path.read_text(encoding="utf-8"))
    }
    assert {table for asked, _ in groups for table in asked} == {*core, "commands"}
    for asked, drawn in groups:
        rows = {
            name
            for name, a in ADD_ONS.items()
            if {*asked} & {*a.rows, *["commands"] * any(a.commands)}
        }
        assert {*drawn} == rows, asked
    drawn = {name for _, names in groups for name in names}
    assert {*without_rows} == ADD_ONS.keys() - drawn
