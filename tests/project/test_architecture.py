"""docs/architecture.md is true of the code: its folders, their sizes, and the files it names."""

import re
import subprocess
import sys
from pathlib import Path

from helpers.mpijob import ROOT

PAGE = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
PACKAGE = ROOT / "nnmpi"
NEAR = 0.15  # how far a size may be off: the page need not follow every line


def lines(path: Path) -> int:
    return len(path.read_text(encoding="utf-8").splitlines())


def near(said: str, found: int) -> bool:
    return abs(int(said.replace(",", "")) - found) <= NEAR * found


def test_every_folder_is_in_the_table_with_its_size() -> None:
    rows = dict(re.findall(r"^\| `(nnmpi[\w/]*)/` \|[^|]*\| ([\d,]+) \|$", PAGE, re.M))
    folders = {str(path.parent.relative_to(ROOT)) for path in PACKAGE.rglob("*.py")}
    assert {*rows} == folders - {"nnmpi/data/embedded"}
    for folder, said in rows.items():
        assert near(said, sum(map(lines, (ROOT / folder).glob("*.py")))), folder


def test_the_core_to_read_first_is_as_long_as_the_page_says() -> None:
    said, text = re.findall(r"read first are\s+([\d,]+) lines[^:]*: (.*?)\n\n", PAGE, re.S)[0]
    folder, found = "", []
    for name in re.findall(r"`([\w/.]+)`", text):
        if name.endswith("/"):
            folder = name
            continue
        path = PACKAGE / (name if name.endswith(".py") else f"{folder}{name}.py")
        found.append(path)
    assert near(said, sum(map(lines, found)))
    assert sum(map(lines, found)) <= 3500
    assert len(found) == len({*found}) > 15


def test_every_file_that_it_names_is_there() -> None:
    for name in re.findall(r"\b((?:[a-z_]+/)+[a-z_]+\.(?:py|md))\b", PAGE):
        assert any(
            (folder / name).exists()
            for folder in (ROOT, PACKAGE, PACKAGE / "comm", PACKAGE / "parallel")
        ), name


def test_the_path_of_a_step_is_printed_where_an_epoch_has_one_step() -> None:
    options = ["--model", "iris-mlp", "--data", "iris", "--batch-size", "120", "--epochs", "1"]
    command = [sys.executable, "scripts/step_path.py", "1", *options]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, check=False, text=True, timeout=60)
    assert (run.returncode, run.stderr) == (0, "")
    assert "parallel/step/executor.py" in run.stdout
