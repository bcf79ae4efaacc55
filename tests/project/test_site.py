"""The documentation site is built without a warning, and is whole, its search too; its check finds
what is not."""

import json
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from urllib.parse import unquote

import pytest
from helpers.mpijob import ROOT

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
    build = [sys.executable, "-m", "zensical", "build", "--clean", "--strict"]
    done = subprocess.run(build, check=False, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    site = ROOT / "build" / "site"
    found = problems(site)
    assert found.returncode == 0, found.stdout
    pages = site.rglob("*.html")
    assert not any('src="http' in page.read_text(encoding="utf-8") for page in pages)
    places = found_by_search(site, "ring all-reduce")
    assert {"collectives/", "extending/algorithm/"} <= places
    for place in places:
        path, _, anchor = place.partition("#")
        text = (site / path / "index.html").read_text(encoding="utf-8")
        assert not anchor or f'id="{unquote(anchor)}"' in text, place


def test_the_check_finds_links_that_lead_nowhere_and_names_on_no_page(tmp_path: Path) -> None:
    """Of a site of two pages, one of which describes a name."""
    (tmp_path / "there").mkdir()
    (tmp_path / "there" / "index.html").write_text('<h1 id="nnmpi.Tensor">Tensor</h1>')
    links = ("there/", "there/#nnmpi.Tensor", "#top", "there/#gone", "gone/")
    body = "".join(f'<a href="{link}">link</a>' for link in links)
    (tmp_path / "index.html").write_text(f'<p id="top">{body}')
    found = problems(tmp_path)
    assert found.returncode == 1
    nowhere = [line for line in found.stdout.splitlines() if "nowhere" in line]
    assert nowhere == [f"index.html: {link} leads nowhere" for link in links[3:]]
    assert "nnmpi.nn.Linear is on no page of docs/api" in found.stdout
    assert "nnmpi.Tensor is on" not in found.stdout
