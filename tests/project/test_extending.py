"""The worked examples of docs/extending: each diff applies, and the tests that it names pass."""

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
NAMES = ("op", "layer", "way", "schedule", "algorithm")


def apply(diff: str, root: Path) -> None:
    """Carries out a unified diff. A hunk is found by its lines, whose numbers do not count."""
    for part in re.split(r"^--- .*\n", diff, flags=re.M)[1:]:
        head, *hunks = re.split(r"^@@ .*\n", part, flags=re.M)
        file = root / head.removeprefix("+++ b/").strip()
        text = file.read_text(encoding="utf-8") if file.exists() else ""
        for hunk in hunks:
            old, new = (side(hunk, sign) for sign in "-+")
            assert not text or text.count(old) == 1, f"{file.name} does not have once:\n{old}"
            text = text.replace(old, new) if text else new
        file.write_text(text, encoding="utf-8")


def side(hunk: str, sign: str) -> str:
    """The lines of a hunk before ("-") or after ("+") the change."""
    lines = [line for line in hunk.splitlines() if line[:1] in (sign, " ", "")]
    return "".join(line[1:] + "\n" for line in lines)


@pytest.mark.parametrize("name", NAMES)
def test_the_change_of_a_page_passes_its_tests(name: str, tmp_path: Path) -> None:
    page = (ROOT / "docs" / "extending" / f"{name}.md").read_text(encoding="utf-8")
    diffs = re.findall(r"^```diff\n(.*?)^```", page, re.S | re.M)
    commands = re.findall(r"^```\npython (-m pytest .*?)\n```", page, re.S | re.M)
    assert (len(diffs), len(commands)) == (1, 1)
    for folder in ("nnmpi", "tests"):
        shutil.copytree(ROOT / folder, tmp_path / folder)
    shutil.copy(ROOT / "setup.cfg", tmp_path)
    apply(diffs[0], tmp_path)
    done = subprocess.run(
        [sys.executable, *shlex.split(commands[0])],
        check=False,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(tmp_path), "PYTHONPYCACHEPREFIX": ""},
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert done.returncode == 0, done.stdout
    assert re.search(r"^\d+ passed", done.stdout, re.M), done.stdout
