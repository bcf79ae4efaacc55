"""The worked examples of docs/extending: each diff applies, and the tests that pages name pass."""

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = {
    name: (ROOT / "docs" / "extending" / f"{name}.md").read_text(encoding="utf-8")
    for name in (
        "op",
        "layer",
        "way",
        "schedule",
        "algorithm",
        "kernel",
        "optimizer",
        "store",
        "pass",
    )
}


def changed(name: str, root: Path) -> dict[Path, str]:
    """The files that the diff of a page changes, with their new text.

    A hunk is found by its lines, which have to be there once; their numbers do not count.
    """
    (diff,) = re.findall(r"^```diff\n(.*?)^```", PAGES[name], re.S | re.M)
    found = {}
    for part in re.split(r"^--- .*\n", diff, flags=re.M)[1:]:
        head, *hunks = re.split(r"^@@ .*\n", part, flags=re.M)
        file = root / head.removeprefix("+++ b/").strip()
        text = file.read_text(encoding="utf-8") if file.exists() else ""
        for hunk in hunks:
            old, new = (side(hunk, sign) for sign in "-+")
            assert not text or text.count(old) == 1, f"{file.name} does not have once:\n{old}"
            text = text.replace(old, new) if text else new
        found[file] = text
    return found


def side(hunk: str, sign: str) -> str:
    """The lines of a hunk before ("-") or after ("+") the change."""
    lines = [line for line in hunk.splitlines() if line[:1] in (sign, " ", "")]
    return "".join(line[1:] + "\n" for line in lines)


@pytest.mark.parametrize("name", PAGES)
def test_a_change_applies(name: str) -> None:
    assert changed(name, ROOT)


@pytest.mark.long
@pytest.mark.timeout(900)
def test_the_changes_pass_the_tests_that_the_pages_name(tmp_path: Path) -> None:
    """All of them together: to start Python for each would take longer than the tests."""
    for folder in ("nnmpi", "tests"):
        shutil.copytree(ROOT / folder, tmp_path / folder)
    for file in ("setup.cfg", "setup.py", "pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / file, tmp_path)
    files, words = [], []
    for name, page in PAGES.items():
        for file, text in changed(name, tmp_path).items():
            file.write_text(text, encoding="utf-8")
        (command,) = re.findall(
            r"^```\npython -m pytest -n 0 (.*?) -k (.*?)\n```", page, re.S | re.M
        )
        files += command[0].split()
        words += shlex.split(command[1])
    build_kernels(tmp_path)
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "pytest",
            "-n",
            "0",
            *dict.fromkeys(files),
            "-k",
            " or ".join(words),
        ],
        check=False,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(tmp_path), "PYTHONPYCACHEPREFIX": ""},
        capture_output=True,
        text=True,
        timeout=850,
    )
    assert done.returncode == 0, done.stdout
    passed = re.search(r"^(\d+) passed", done.stdout, re.M)
    assert passed is not None, done.stdout
    assert int(passed[1]) > 200


def build_kernels(root: Path) -> None:
    """For the baseline alone, in the place of all that are there."""
    for compiled in (root / "nnmpi" / "arrays" / "native").glob("*.so"):
        compiled.unlink()
    subprocess.run(
        [sys.executable, "setup.py", "-q", "build_ext", "--inplace"],
        check=True,
        cwd=root,
        env={**os.environ, "NNMPI_BUILD": "baseline"},
        timeout=850,
    )
