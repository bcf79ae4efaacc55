"""Tries nnmpi without an add-on: scripts/without NAME|--turn [--brief] [--keep FOLDER]

Copies the tree, takes out the add-on's folders in nnmpi and tests, its modules and the tests that
import it, and of add-ons that use it likewise. Then runs the linters and the quick tests, of
which those that fail and have asked for its options, models or modules are left out (left_out.py).
"""

import argparse
import ast
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
FOLDERS = "nnmpi/addons", "tests/addons"
"""What has a folder for each add-on."""

PACKAGES = (
    *("nnmpi/__init__.py", "nnmpi/nn/__init__.py"),
    *("nnmpi/optim/__init__.py", "nnmpi/data/__init__.py", "nnmpi/nn/utils/__init__.py"),
    *("nnmpi/autograd/__init__.py", "nnmpi/autograd/torch_names.py"),
    "nnmpi/addons/torchlike/functional.py",
)
"""Files that import names of add-ons for type checkers."""

FEW = (
    "tests/project/test_addons.py",
    "tests/project/test_loaded_on_use.py",
    "tests/run/test_trainer.py",
)
PYTEST = ("python", "-m", "pytest", "-q", "-n", "2", "-p", "left_out")
OF_SOME = {"PYTEST_ADDOPTS": "-m 'not all_add_ons'"}
"""A variable for the tests, and for those that tests run."""

BRIEF = (
    ("ruff", "check", "--quiet", "nnmpi", "tests"),
    ("lint-imports", "--no-logo"),
    (*PYTEST, "-n", "0", *FEW),
)
"""The checks with --brief, in half a minute: one process, since to start others takes longer than
these tests."""

CHECKS = (*BRIEF[:2], ("mypy", "nnmpi"), PYTEST)


MOST = 0.3
"""The largest share of files of tests that may go with an add-on: with the simulator, and planning
that uses it, 24% do; with none of the others more than 7%."""


def main() -> int:
    """Tries nnmpi without each of the named add-ons; returns the status of the first failure."""
    sys.path.insert(0, str(ROOT))
    from nnmpi.addons import ADD_ONS

    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    p.add_argument("name", nargs="?", choices=ADD_ONS)
    p.add_argument("--turn", action="store_true", help="two add-ons, on each day of commits others")
    p.add_argument("--keep", type=Path, help="make the copy in this folder, and leave it there")
    p.add_argument("--brief", action="store_true", help="linters and few tests")
    given = p.parse_args()
    if bool(given.name) == given.turn:
        p.error("give a name or --turn")
    for name in turn([*ADD_ONS], day_of_commit()) if given.turn else [given.name]:
        with tempfile.TemporaryDirectory() as folder:
            tree = given.keep or Path(folder) / "nnmpi"
            if status := tried(name, tree, BRIEF if given.brief else CHECKS):
                return status
    return 0


def day_of_commit() -> int:
    """Returns the number of the day on which the last commit was made."""
    seconds = ("git", "log", "-1", "--format=%ct")
    return int(subprocess.check_output(seconds, cwd=ROOT, text=True)) // 86400


def turn(names: list[str], day: int) -> list[str]:
    """Returns the two whose turn it is on a day, which each has once in as many days."""
    return [names[k % len(names)] for k in (2 * day, 2 * day + 1)]


def tried(name: str, tree: Path, checks: Iterable[tuple[str, ...]]) -> int:
    """Takes add-ons out of a copy, and returns the status of the first check that fails."""
    from nnmpi.addons import ADD_ONS

    gone = {name}
    while more := {name for name, a in ADD_ONS.items() if gone & {*a.uses}} - gone:
        gone |= more
    print(f"without {', '.join(sorted(gone))}", flush=True)
    copy(tree)
    modules = [module for name in gone for module in ADD_ONS[name].modules]
    modules += [f"nnmpi.{m}" for name in gone for m in ADD_ONS[name].rows.get("modules", ())]
    paths = {*paths_of(tree, modules), *(tree / t for n in gone for t in ADD_ONS[n].files)}
    folders = (tree / folder / name for name in gone for folder in FOLDERS)
    paths |= {*filter(Path.is_dir, folders)}
    for path in sorted(paths, reverse=True):  # files before the folder that they are in
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    for package in filter(Path.is_file, map(tree.joinpath, PACKAGES)):
        take_out(package, modules)
    tests = importing(tree, modules)
    if (n := count(tests)) > MOST * (of := count((tree / "tests").rglob("*.py"))):
        sys.exit(f"{n} of {of} files of tests import it, more than {MOST:.0%}: see which")
    print(f"left out {n} of {of} files of tests", flush=True)
    what = {**gone_of(gone), "modules": modules, "fixtures": [*fixtures_of(tests)]}
    for path in tests:
        path.unlink()
    environment = {**os.environ, **watched(tree, what), **OF_SOME}
    for check in (is_gone(modules), *checks):
        print("$", *check, flush=True)
        if status := subprocess.run(check, cwd=tree, env=environment, check=False).returncode:
            return status
    return 0


ASKED = """
# ruff: noqa: E501
exec(SourceFileLoader("asked", {path!r}).get_code("asked"), {{"__file__": {path!r}}})
"""
"""What `nnmpi.addons` ends with in the copy: each process notes what it is asked for."""


def watched(tree: Path, what: dict[str, Any]) -> dict[str, str]:
    """Makes a tree note what it is asked for of what is gone; returns variables for its tests."""
    scripts, file = tree / "scripts", tree / "gone.json"
    file.write_text(json.dumps(what), encoding="utf-8")
    with (tree / "nnmpi" / "addons" / "__init__.py").open("a", encoding="utf-8") as module:
        module.write(ASKED.format(path=str(scripts / "asked.py")))
    path = f"{tree}{os.pathsep}{scripts}"
    return {"PYTHONPATH": path, "NNMPI_GONE": str(file), "NNMPI_ASKED": os.devnull}


def is_gone(modules: list[str]) -> tuple[str, ...]:
    """The check that modules cannot be imported."""
    tries = f"""
from contextlib import suppress
from importlib.util import find_spec
import nnmpi
for name in {modules!r}:
    with suppress(ModuleNotFoundError):
        assert find_spec(name) is None, f"{{name}} is still there"
"""
    return "python", "-c", tries


BY_NAME = (
    *("names", "models", "datasets", "optimizers", "state_files"),
    *("convolutions", "layout_axes"),
)
"""Tables whose rows programs ask for by name. nnmpi itself asks for rows of others in each run."""


def gone_of(gone: set[str]) -> dict[str, Any]:
    """Returns what these add-ons bring, as asked.py reads it."""
    from nnmpi.addons import ADD_ONS, loaded

    add_ons = [ADD_ONS[name] for name in sorted(gone)]

    def objects(table: str) -> Iterator[Any]:
        return (loaded(where) for a in add_ons for where in a.rows.get(table, {}).values())

    tables = {t: [key for a in add_ons for key in a.rows.get(t, {})] for t in BY_NAME}
    tables["convolutions"] = [key for key in tables["convolutions"] if key != "auto"]  # it stays
    tables["layout_axes"] += [axis.of_layout.way for axis in objects("layout_axes")]
    tables["commands"] = [name for a in add_ons for name in a.commands]
    values, options = {"convolution": tables["convolutions"]}, list[str]()
    for added in objects("simulations"):
        values.setdefault("kind", []).extend(added.commands)
        options += added.options
    for part in objects("options"):
        for field in fields(part.options) if part.options else ():
            options += filter(None, (field.name, field.metadata["alias"]))
        for option, more in part.choices.items():
            values.setdefault(option, []).extend(more)
    memory = [key for a in add_ons for key in a.rows.get("memory", {})]
    return {"tables": tables, "memory": memory, "options": options, "values": values}


def count(paths: Iterable[Path]) -> int:
    """The number of files of tests, without helpers."""
    return sum(path.name.startswith("test_") for path in paths)


def fixtures_of(tests: set[Path]) -> Iterator[str]:
    """Yields the names of functions in files conftest.py: their fixtures."""
    for path in tests:
        if path.name == "conftest.py":
            parsed = ast.parse(path.read_text(encoding="utf-8"))
            yield from (node.name for node in parsed.body if isinstance(node, ast.FunctionDef))


def copy(tree: Path) -> None:
    """Copies all files that git knows, and the compiled kernels."""
    listed = ("git", "ls-files", "--cached", "--others", "--exclude-standard")
    names = subprocess.run(listed, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    native = (p.relative_to(ROOT) for p in ROOT.glob("nnmpi/arrays/native/*.so"))
    for name in (*names.splitlines(), *map(str, native)):
        if (ROOT / name).is_file():  # not one that was removed and not yet committed
            (tree / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, tree / name)


def paths_of(tree: Path, modules: list[str]) -> Iterator[Path]:
    """Yields the folders and files of modules, and what type checkers read of them."""
    for module in modules:
        path = tree.joinpath(*module.split("."))
        kinds = path, path.with_suffix(".py"), path.with_suffix(".pyi")
        yield from (found for found in kinds if found.exists())


def take_out(path: Path, modules: list[str]) -> None:
    """Takes the lines that import one of these modules out of a file."""
    text = path.read_text(encoding="utf-8")
    lines = text.splitlines(keepends=True)
    nodes = [*ast.walk(ast.parse(text))]
    for node in nodes:
        if isinstance(node, ast.ImportFrom) and imports_of(node, modules):
            first, last = node.lineno, node.end_lineno or node.lineno
            lines[first - 1 : last] = [""] * (last - first + 1)
    for node in nodes:
        if isinstance(node, ast.If) and not any(lines[node.lineno : node.body[-1].end_lineno]):
            lines[node.lineno] = " " * node.body[0].col_offset + "pass\n"
    path.write_text("".join(lines), encoding="utf-8")


def imports_of(node: ast.AST, modules: list[str]) -> bool:
    """True if a statement imports one of these modules, or what is in it."""
    if isinstance(node, ast.ImportFrom):
        names = [node.module or "", *(f"{node.module}.{a.name}" for a in node.names)]
    else:
        names = [a.name for a in node.names] if isinstance(node, ast.Import) else []
    return any(name == m or name.startswith(f"{m}.") for name in names for m in modules)


def importing(tree: Path, modules: list[str]) -> set[Path]:
    """The files of tests that import one of these modules, or a helper that does."""
    paths = (tree / "tests").rglob("*.py")
    files = {path: ast.parse(path.read_text(encoding="utf-8")) for path in paths}
    found, gone = set[Path](), [*modules]
    while more := {
        path
        for path, parsed in files.items()
        if path not in found and any(imports_of(node, gone) for node in ast.walk(parsed))
    }:
        found |= more
        gone += [".".join(p.relative_to(tree / "tests").with_suffix("").parts) for p in more]
        gone += [p.stem for p in more]  # as files beside it import it
    return found


if __name__ == "__main__":
    sys.exit(main())
