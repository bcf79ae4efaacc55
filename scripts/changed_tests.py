"""Prints the files of tests that reach, by what they import, files changed since a commit:
python scripts/changed_tests.py [COMMIT]   (HEAD without it)

A module that is loaded on use counts where its name stands: `nnmpi.Trainer`, "nnmpi.train".
"""

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import grimp

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

import nnmpi  # noqa: E402

OWN = {name: getattr(nnmpi, name) for name in nnmpi._OWN_ON_USE}
OWN_ON_USE = {f"nnmpi.{k}": getattr(v, "__module__", v.__name__) for k, v in OWN.items()}
ON_USE = {f"nnmpi.{k}": where.partition(":")[0] for k, where in nnmpi._ON_USE.items()} | OWN_ON_USE
COMMANDS = {"nnmpi.train": "nnmpi.run"}
"""What commands load on use."""

NAME = re.compile(r"\bnnmpi(?:\.\w+)+")


def main() -> None:
    """Prints the files, one a line."""
    commit = sys.argv[1] if len(sys.argv) > 1 else "HEAD"
    git = (
        ["git", "ls-files", "--others", "--exclude-standard"],
        ["git", "diff", "--name-only", commit],
    )
    changed = {
        line
        for command in git
        for line in subprocess.check_output(command, cwd=ROOT, text=True).splitlines()
    }
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        if any(file_of(module) in changed for module in reached(path)) or named(path) in changed:
            print(named(path))


def named(path: Path) -> str:
    """The path as git has it."""
    return path.relative_to(ROOT).as_posix()


GRAPH = grimp.build_graph("nnmpi", "helpers", exclude_type_checking_imports=True, cache_dir=None)
for module in OWN_ON_USE.values():
    GRAPH.remove_import(importer="nnmpi", imported=module)


@cache
def file_of(module: str) -> str:
    """The file of a module."""
    path = ROOT / ("tests" if module.startswith("helpers") else "") / module.replace(".", "/")
    return named(path / "__init__.py" if path.is_dir() else path.with_suffix(".py"))


@cache
def upstream(module: str) -> set[str]:
    """The modules that one imports, itself and those that it names included."""
    found, new = set[str](), {module}
    while new:
        found |= new
        imported = set[str]().union(*map(GRAPH.find_modules_directly_imported_by, new))
        by_name = {name for one in new for name in names_in(ROOT / file_of(one))}
        new = ((imported | by_name) & GRAPH.modules) - found
    return found


def reached(path: Path) -> set[str]:
    """The modules that a file of tests imports or names, and what those import."""
    return set[str]().union(*(upstream(name) for name in names_in(path) if name in GRAPH.modules))


def names_in(path: Path) -> Iterator[str]:
    """Yields the modules that a file of tests imports or names, as far as they exist."""
    if "tests" not in path.parts or not path.exists():
        return
    text = path.read_text(encoding="utf-8")
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name != "nnmpi")
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            for alias in node.names:
                name = f"{node.module}.{alias.name}"
                yield from (ON_USE.get(name, name), node.module)
    for name in NAME.findall(text):
        parts = name.split(".")
        for known in (".".join(parts[:n]) for n in range(2, len(parts) + 1)):
            yield from (ON_USE.get(known, known), COMMANDS.get(known, known))


if __name__ == "__main__":
    main()
