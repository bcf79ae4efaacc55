"""The documentation site is built without a warning, and is whole, its search too; its check finds
what is not."""

import json
import re
import runpy
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from urllib.parse import unquote

import pytest
from helpers.mpijob import ROOT

from nnmpi.collectives import Step
from nnmpi.collectives.price import Network, Price

CHECK = [sys.executable, str(ROOT / "scripts" / "check_site.py")]


def problems(site: Path) -> "subprocess.CompletedProcess[str]":
    return subprocess.run([*CHECK, str(site)], check=False, capture_output=True, text=True)


def found_by_search(site: Path, query: str) -> set[str]:
    """Where the sections are that have all words, as the index separates them."""
    index = json.loads((site / "search.json").read_text(encoding="utf-8"))
    separator = re.compile(index["config"]["separator"])
    texts = {one["location"]: f"{one['title']} {one['text']}".lower() for one in index["items"]}
    wanted = {*separator.split(query)}
    return {place for place, text in texts.items() if wanted <= {*separator.split(text)}}


@pytest.mark.skipif(find_spec("zensical") is None, reason="zensical is not installed: '.[docs]'")
def test_the_site_is_built_and_has_each_link_each_public_name_and_a_search() -> None:
    for build in (
        "scripts/lessons.py --not-run",
        "-m zensical build --clean --strict",
        "scripts/options.py build/site",
    ):
        command = [sys.executable, *build.split()]
        done = subprocess.run(command, check=False, cwd=ROOT, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
    site = ROOT / "build" / "site"
    found = problems(site)
    assert found.returncode == 0, found.stdout
    pages = {str(p.parent.relative_to(site)): p.read_text("utf-8") for p in site.rglob("*.html")}
    assert not any('src="http' in text for text in pages.values())
    broken = re.compile(r"<code>[^<]*(?<![\w-])--?[a-z]")  # by a browser, behind the dashes
    assert [place for place, text in pages.items() if broken.search(text)] == []
    assert 'href="lessons/"' in pages["."]
    lesson = pages["lessons/1-all-reduce"]
    assert lesson.count('<details class="note">') == 3
    assert "<msub><mi>T</mi><mtext>ring</mtext></msub>" in lesson
    assert "$" not in re.sub(r"<(script|pre).*?</\1>", "", lesson, flags=re.S)
    fields = re.findall(r"<li><strong>(\w+)</strong>: ", pages["api/collectives"])
    assert {*Step._fields, *Price._fields, *Network._fields} <= {*fields}
    assert 'id="nnmpi.collectives.verify.verify"' in pages["api/collectives"]
    places = found_by_search(site, "ring all-reduce")
    assert {"collectives/", "extending/algorithm/"} <= places
    for place in places:
        path, _, anchor = place.partition("#")
        text = (site / path / "index.html").read_text(encoding="utf-8")
        assert not anchor or f'id="{unquote(anchor)}"' in text, place


def test_a_lesson_is_a_page_with_what_its_cells_print_and_draw() -> None:
    nbformat = pytest.importorskip("nbformat")
    new = nbformat.v4
    drawn = new.new_output("display_data", {"image/svg+xml": "<svg><text>all ranks</text></svg>"})
    printed = [new.new_output("stream", text=text) for text in ("a\n", "b\n")]
    shown = new.new_output("execute_result", {"text/plain": "[1, 2]"})
    solution = {"tags": ["solution"]}
    cells = [
        new.new_markdown_cell("# Sums\n\nSo $\\frac12 x_{t+1}^2$."),
        new.new_code_cell("f()", outputs=[*printed, drawn]),
        new.new_markdown_cell("### Solution 1", metadata=solution),
        new.new_code_cell("x = 1\n\nx", outputs=[shown], metadata=solution),
    ]
    lessons = runpy.run_path(str(ROOT / "scripts" / "lessons.py"))
    text, pictures = lessons["page"](new.new_notebook(cells=cells), "sums")
    assert pictures == {"sums-1.svg": "<svg><text>all ranks</text></svg>"}
    half = "<mfrac><mn>1</mn><mn>2</mn></mfrac>"
    sub = "<mrow><mi>t</mi><mo>+</mo><mn>1</mn></mrow>"
    assert f"{half}<msubsup><mi>x</mi>{sub}<mn>2</mn></msubsup>" in text
    assert "```python\nf()\n```\n\n```text\na\nb\n```\n\n![all ranks](sums-1.svg)\n" in text
    hidden = "```python\nx = 1\n\nx\n```\n\n```text\n[1, 2]\n```".replace("\n", "\n    ")
    assert f'??? note "Solution 1"\n\n    {hidden}\n'.replace("    \n", "\n") in text
