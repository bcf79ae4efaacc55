"""docs/architecture.md is true of the code: its folders, and the files it names."""

import re
import subprocess
import sys

from helpers.mpijob import ROOT

PAGE = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
PACKAGE = ROOT / "nnmpi"


def test_every_folder_is_in_the_table() -> None:
    found = re.findall(r"^\| `(nnmpi[\w/]*)/` \|", PAGE, re.M)
    folders = {str(path.parent.relative_to(ROOT)) for path in PACKAGE.rglob("*.py")}
    assert {*found} == folders - {"nnmpi/data/embedded"}


def test_every_file_that_it_names_is_there() -> None:
    for name in re.findall(r"\b((?:[a-z_]+/)+[a-z_]+\.(?:py|md))\b", PAGE):
        assert any(
            (folder / name).exists()
            for folder in (ROOT, PACKAGE, PACKAGE / "comm", PACKAGE / "parallel")
        ), name


def test_the_path_of_a_step_is_printed_where_an_epoch_has_one_step() -> None:
    options = ["--model", "iris-mlp", "--data", "iris", "--batch-size", "120", "--epochs", "1"]
    command = [sys.executable, "scripts/step_path.py", "1", *options]
    run = subprocess.run(
        command, cwd=ROOT, capture_output=True, check=False, text=True, timeout=240
    )
    assert (run.returncode, run.stderr) == (0, "")
    assert "parallel/step/executor.py" in run.stdout
