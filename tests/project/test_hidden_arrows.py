"""Names of modules in strings: arrows that the linter does not see."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import nnmpi
from nnmpi.addons import table
from nnmpi.commands import COMMANDS

FOLDER = Path(nnmpi.__file__).parent
NAME = re.compile(r"nnmpi(\.\w+)+(:[\w.]+)?")


def module_of(path: Path) -> str:
    return ".".join(path.relative_to(FOLDER.parent).with_suffix("").parts).removesuffix(".__init__")


MODULES = {module_of(path): path for path in sorted(FOLDER.rglob("*.py"))}


def test_strings_that_name_other_modules_stand_in_files_of_add_ons() -> None:
    """In `addon.py`, whose rows other tests load. A module may name itself and its packages, and
    say the name of a command, which is that of a module too."""
    found = {str(path.relative_to(FOLDER)): [*arrows(module)] for module, path in MODULES.items()}
    assert not {file: names for file, names in found.items() if names}, (
        "pass the object, or add a row to an `addon.py`"
    )


def arrows(module: str) -> Iterator[str]:
    """Yields the names of other modules of nnmpi in strings of a module."""
    path = MODULES[module]
    tree = ast.parse(path.read_text(encoding="utf-8"))
    docstrings = {n.value for n in ast.walk(tree) if isinstance(n, ast.Expr)}
    moved, commands = table("modules"), {f"nnmpi.{name}" for name in COMMANDS}
    for node in ast.walk(tree):
        if not isinstance(node, ast.Constant) or node in docstrings or path.name == "addon.py":
            continue
        if not isinstance(node.value, str) or not NAME.fullmatch(node.value):
            continue
        named = node.value.partition(":")[0]
        there = moved.get(named.removeprefix("nnmpi."), named)
        if there in MODULES and named not in commands and not f"{module}.".startswith(f"{there}."):
            yield node.value
