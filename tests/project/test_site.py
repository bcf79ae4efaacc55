"""The documentation site is built without a warning, and is whole, its search too."""

import json
import re
from importlib.util import find_spec
from pathlib import Path
from urllib.parse import unquote

import pytest
from helpers.mpijob import ROOT
from helpers.programs import python

from nnmpi.collectives import Step
from nnmpi.collectives.price import Network, Price


def found_by_search(site: Path, query: str) -> set[str]:
    """Where the sections are that have all words, as the index separates them."""
    index = json.loads((site / "search.json").read_text(encoding="utf-8"))
    separator = re.compile(index["config"]["separator"])
    texts = {one["location"]: f"{one['title']} {one['text']}".lower() for one in index["items"]}
    wanted = {*separator.split(query)}
    return {place for place, text in texts.items() if wanted <= {*separator.split(text)}}


@pytest.mark.all_add_ons
@pytest.mark.skipif(find_spec("zensical") is None, reason="zensical is not installed: '.[docs]'")
def test_the_site_is_built_and_has_each_link_each_public_name_and_a_search() -> None:
    for build in (
        "scripts/lessons.py --not-run",
        "-m zensical build --clean --strict",
        "scripts/options.py build/site",
    ):
        done = python(*build.split(), folder=ROOT, timeout=280)
        assert done.status == 0, done.out + done.err
    site = ROOT / "build" / "site"
    found = python(ROOT / "scripts" / "check_site.py", site)
    assert found.status == 0, found.out
    pages = {str(p.parent.relative_to(site)): p.read_text("utf-8") for p in site.rglob("*.html")}
    assert not any('src="http' in text for text in pages.values())
    broken = re.compile(r"<code>[^<]*(?<![\w-])--?[a-z]")  # by a browser, behind the dashes
    assert [place for place, text in pages.items() if broken.search(text)] == []
    assert 'href="lessons/"' in pages["."]
    lesson = pages["lessons/1-all-reduce"]
    assert lesson.count('<details class="note">') == 3
    assert lesson.count('src="../1-all-reduce-') == 4  # kept, though lessons have not run
    assert "<msub><mi>T</mi><mtext>ring</mtext></msub>" in lesson
    assert "$" not in re.sub(r"<(script|pre).*?</\1>", "", lesson, flags=re.S)
    fields = re.findall(r"<li><strong>(\w+)</strong>: ", pages["api/ranks"])
    assert {*Step._fields, *Price._fields, *Network._fields} <= {*fields}
    assert 'id="nnmpi.collectives.verify.verify"' in pages["api/ranks"]
    places = found_by_search(site, "ring all-reduce")
    assert {"collectives/", "extending/"} <= {place.partition("#")[0] for place in places}
    for place in places:
        path, _, anchor = place.partition("#")
        text = (site / path / "index.html").read_text(encoding="utf-8")
        assert not anchor or f'id="{unquote(anchor)}"' in text, place
