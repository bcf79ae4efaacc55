"""Writes into course/wrong-solutions.md what checks of the course print for wrong solutions.

usage: python scripts/wrong_solutions.py
"""

import re
import runpy
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from textwrap import fill

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "course")]

from classroom.grading import How, grade  # noqa: E402

PAGE, SEED = ROOT / "course" / "wrong-solutions.md", 7
SECTION = re.compile(r"^## (.*?)\n(.*?)(?=^## |\Z)", re.DOTALL | re.MULTILINE)
BLOCK = re.compile(r"(?<=^```\n)# .*?(?=^```$)", re.DOTALL | re.MULTILINE)


def shown(page: str) -> dict[str, dict[str, str]]:
    """The faults that a page shows, by assignment and by the name of the mutant."""
    faults = dict[str, dict[str, str]]()
    for title, text in SECTION.findall(page):
        entries = re.findall(r"^# (.*)\n((?:[^#].*\n)*)", BLOCK.findall(text)[0], re.MULTILINE)
        of_page = {name: " ".join(lines.split()) for name, lines in entries}
        faults[title.lower().replace(" ", "-")] = of_page
    return faults


def printed(assignment: str, name: str) -> str:
    """The fault that the check of a mutant prints, behind the name of the check."""
    folder = ROOT / "course"
    mutant = runpy.run_path(str(folder / assignment / "mutants.py"))["MUTANTS"][name]
    text = (folder / "solutions" / f"{assignment}.py").read_text(encoding="utf-8")
    for old, new in mutant.edits:
        text = text.replace(old, new)
    with TemporaryDirectory() as made:
        adapters = Path(made) / "adapters.py"
        adapters.write_text(text, encoding="utf-8")
        results, not_loaded = grade(assignment, adapters, SEED, How(mutant.check))
    return f"{mutant.check}: {not_loaded or results[0].fault}"


def main() -> None:
    """Writes the page."""
    page = PAGE.read_text(encoding="utf-8")
    faults = shown(page)

    def section(match: re.Match[str]) -> str:
        assignment = match[1].lower().replace(" ", "-")
        lines = [
            f"# {name}\n{fill(printed(assignment, name), 116, break_on_hyphens=False)}\n"
            for name in faults[assignment]
        ]
        return BLOCK.sub(lambda _: "".join(lines), match[0])

    PAGE.write_text(SECTION.sub(section, page), encoding="utf-8")


if __name__ == "__main__":
    main()
