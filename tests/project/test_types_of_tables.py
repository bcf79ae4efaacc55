"""Tables of add-ons: each is declared once, and its rows are of the declared type."""

import ast
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

import nnmpi
from nnmpi.addons import ADD_ONS

ROOT = Path(nnmpi.__file__).parents[1]


class Declared(NamedTuple):
    """A table as a module declares it: `NAME: Table[TYPE] = Table("table")`."""

    table: str
    module: str
    name: str


def declared(path: Path) -> Iterator[Declared]:
    """Yields the tables that a file declares."""
    text = path.read_text(encoding="utf-8")
    if "Table(" not in text:
        return
    parts = path.relative_to(ROOT).with_suffix("").parts
    module = ".".join(parts).removesuffix(".__init__")
    for node in ast.parse(text).body:
        match node:
            case ast.AnnAssign(
                target=ast.Name(name),
                value=ast.Call(
                    ast.Name("Table") | ast.Attribute(attr="Table"), [ast.Constant(table)]
                ),
            ):
                yield Declared(table, module, name)


MOST = 40
"""The most tables: it may only fall. A table more takes another that goes, or is a row's part."""

TABLES = [table for path in (ROOT / "nnmpi").rglob("*.py") for table in declared(path)]


def test_each_table_is_declared_once() -> None:
    times = Counter(table.table for table in TABLES)
    assert {table: n for table, n in times.items() if n > 1} == {}


def test_there_are_no_more_tables() -> None:
    assert len(TABLES) <= MOST


@pytest.mark.all_add_ons
def test_each_table_has_rows_and_each_row_a_table() -> None:
    rows = {table for a in ADD_ONS.values() for table in a.rows}
    assert {table.table for table in TABLES} == rows


def test_rows_are_of_the_type_of_their_table(tmp_path: Path) -> None:
    rows = [
        (table, where)
        for table in TABLES
        for a in ADD_ONS.values()
        for where in {*a.rows.get(table.table, {}).values()}
    ]
    assert wrong(rows, tmp_path) == []


def test_a_row_of_another_type_is_found(tmp_path: Path) -> None:
    tables = "optimizers", "event_fields"
    rows = [(t, "nnmpi.optim.rules:SGD") for t in TABLES if t.table in tables]
    (found,) = wrong(rows, tmp_path)
    assert 'incompatible type "type[SGD]"; expected "EventFields"' in found


HEAD = """
from collections.abc import Callable
from nnmpi.addons import T, Table
def fits(table: Table[T]) -> Callable[[T], None]: return print
"""


def wrong(rows: Iterable[tuple[Declared, str]], folder: Path) -> list[str]:
    """Returns what mypy says of rows that do not have the type of their table, given as pairs of a
    table and "module:name": it reads a file that passes each row to a function of this type."""
    pytest.importorskip("mypy")
    modules, calls = set[str](), list[str]()
    for table, where in rows:
        modules |= {table.module, where.partition(":")[0]}
        calls.append(f"fits({table.module}.{table.name})({where.replace(':', '.')})")
    file = folder / "rows.py"
    imports = (f"import {module}" for module in sorted(modules))
    file.write_text("\n".join([HEAD, *imports, *calls]), encoding="utf-8")
    command = (sys.executable, "-m", "mypy", "--no-error-summary", str(file))
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    return run.stdout.splitlines() + run.stderr.splitlines()
