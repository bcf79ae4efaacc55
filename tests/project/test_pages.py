"""The pages of docs/ are in the navigation, and near the start page."""

import re
import tomllib
from pathlib import Path
from typing import Any

from helpers.mpijob import ROOT

DOCS = ROOT / "docs"
PAGES = {path.relative_to(DOCS).as_posix(): path.read_text() for path in DOCS.rglob("*.md")}


def pages_of(navigation: list[Any]) -> list[str]:
    """The pages of the navigation, whose groups are tables of a name and pages."""
    pages = []
    for item in navigation:
        for target in [item] if isinstance(item, str) else item.values():
            pages += [target] if isinstance(target, str) else pages_of(target)
    return pages


def test_the_navigation_has_each_page_once() -> None:
    site = tomllib.loads((ROOT / "zensical.toml").read_text())["project"]
    notebooks = (ROOT / "examples" / "notebooks").glob("*.ipynb")
    lessons = ["lessons/index.md", *(f"lessons/{path.stem}.md" for path in notebooks)]
    assert sorted(pages_of(site["nav"])) == sorted([*PAGES, *lessons])


def test_each_page_is_three_clicks_or_fewer_from_the_start_page() -> None:
    """By links within the pages; the navigation stands beside each of them."""
    clicks = {"index.md": 0}
    for page in (queue := ["index.md"]):
        for link in re.findall(r"\]\(([\w./-]+\.md)(?:#[\w-]*)?\)", PAGES[page]):
            target = (DOCS / page).parent.joinpath(link).resolve()
            if target.is_relative_to(DOCS):
                name = Path(target).relative_to(DOCS).as_posix()
                if name not in clicks:
                    clicks[name] = clicks[page] + 1
                    queue.append(name)
    assert clicks.keys() == PAGES.keys()
    assert max(clicks.values()) <= 3
