"""The worked examples of docs/extending: each diff applies, and the tests that it names pass."""

import re
import shutil
from pathlib import Path

import pytest
from helpers.mpijob import ROOT
from helpers.programs import python

pytestmark = pytest.mark.all_add_ons

PAGE = (ROOT / "docs" / "extending.md").read_text(encoding="utf-8")
DIFFS = {
    path.stem: path.read_text(encoding="utf-8")
    for path in sorted((ROOT / "docs" / "extending").glob("*.diff"))
}


def changed(name: str, root: Path) -> dict[Path, str]:
    """The files that a diff changes, with their new text.

    A hunk is found by its lines, which have to be there once; their numbers do not count.
    """
    found = {}
    for part in re.split(r"^--- .*\n", DIFFS[name], flags=re.M)[1:]:
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


@pytest.mark.parametrize("name", DIFFS)
def test_a_change_applies(name: str) -> None:
    assert changed(name, ROOT)
    for file in re.split(r"^--- .*\n", DIFFS[name], flags=re.M)[1:]:
        # git apply takes hunks in their order alone
        lines = [int(n) for n in re.findall(r"^@@ -(\d+)", file, re.M)]
        assert lines == sorted(lines)


def test_the_page_has_every_diff_with_the_files_that_it_changes() -> None:
    """Files of nnmpi by their paths within it; and the command of its tests begins the diff."""
    assert {*re.findall(r"\]\(extending/(\w+)\.diff\)", PAGE)} == DIFFS.keys()
    for name in DIFFS:
        (row,) = re.findall(rf"^\|.*\]\(extending/{name}\.diff\).*$", PAGE, re.M)
        files = [str(file.relative_to(ROOT)) for file in changed(name, ROOT)]
        named = [file.removeprefix("nnmpi/") for file in files if file.startswith("nnmpi/")]
        assert [file for file in named if f"`{file}`" not in row] == []
        assert [file for file in command(name)[0] if not (ROOT / file).exists()] == []


def command(name: str) -> tuple[list[str], str]:
    """The files of tests that a diff names, and what `-k` chooses of them."""
    pattern = r'^\$ python -m pytest -n 0 (.*?) -k "(.*)"$'
    ((files, words),) = re.findall(pattern, DIFFS[name], re.M)
    return files.split(), words


@pytest.mark.long
@pytest.mark.timeout(900)
def test_the_changes_pass_the_tests_that_they_name(tmp_path: Path) -> None:
    """All of them together: to start Python for each would take longer than the tests."""
    for folder in ("nnmpi", "tests"):
        shutil.copytree(ROOT / folder, tmp_path / folder)
    for file in ("setup.cfg", "setup.py", "pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / file, tmp_path)
    files, words = [], []
    for name in DIFFS:
        for file, text in changed(name, tmp_path).items():
            file.write_text(text, encoding="utf-8")
        of_it, chosen = command(name)
        files += of_it
        words.append(chosen)
    build_kernels(tmp_path)
    options = (*("-m", "pytest", "-n", "0"), *dict.fromkeys(files), "-k", " or ".join(words))
    own = {"PYTHONPATH": str(tmp_path), "PYTHONPYCACHEPREFIX": ""}
    done = python(*options, folder=tmp_path, timeout=850, **own)
    assert done.status == 0, done.out
    passed = re.search(r"^(\d+) passed", done.out, re.M)
    assert passed is not None, done.out
    assert int(passed[1]) > 200


def build_kernels(root: Path) -> None:
    """For the baseline alone, in the place of all that are there."""
    for compiled in (root / "nnmpi" / "arrays" / "native").glob("*.so"):
        compiled.unlink()
    command = ("setup.py", "-q", "build_ext", "--inplace")
    done = python(*command, folder=root, timeout=850, NNMPI_BUILD="baseline")
    assert done.status == 0, done.err
