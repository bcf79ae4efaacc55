"""Checks a built site: links lead somewhere, the sitemap has all pages, public names are described.

usage: python scripts/check_site.py [build/site]
"""

import importlib
import inspect
import pkgutil
import re
import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any
from urllib.parse import unquote, urlsplit

NAMESPACES = "nnmpi", "nnmpi.nn", "nnmpi.optim", "nnmpi.comm", "nnmpi.collectives"
"""Packages whose public names are the ones that they import."""
ROOMS = "nnmpi.schedules", "nnmpi.parallel.arrangement", "nnmpi.addons.simulator"
"""Packages whose public names are the ones that their modules define."""


class Page(HTMLParser):
    """The anchors of a page, and its links."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.anchors, self.links = set[str](), list[str]()
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            if name == "id" and value:
                self.anchors.add(value)
            elif name in ("href", "src") and value and tag != "link":
                self.links.append(value)


def broken(site: Path, pages: dict[Path, Page]) -> Iterator[str]:
    """A line for each link of a page whose file or anchor does not exist."""
    for path, page in pages.items():
        for link in page.links:
            parts = urlsplit(link)
            if parts.scheme or parts.netloc or path.name == "404.html":
                continue
            target = path if not parts.path else (path.parent / unquote(parts.path)).resolve()
            target = target / "index.html" if target.is_dir() else target
            anchors = pages[target].anchors if target in pages else {""}
            if not target.exists() or (parts.fragment and unquote(parts.fragment) not in anchors):
                yield f"{path.relative_to(site)}: {link} leads nowhere"


def unlisted(site: Path, pages: dict[Path, Page]) -> Iterator[str]:
    """A line for each page that the sitemap does not list."""
    file = site / "sitemap.xml"
    addresses = re.findall("<loc>(.*?)</loc>", file.read_text() if file.exists() else "")
    listed = {urlsplit(address).path for address in addresses}
    top = min(listed, key=len, default="/")
    for path in (path for path in pages if path.name == "index.html"):
        if f"{top}{path.parent.relative_to(site)}/".removesuffix("./") not in listed:
            yield f"{path.relative_to(site)} is not in sitemap.xml"


def public() -> Iterator[tuple[str, Any]]:
    """(name, value) of each public name, and of the methods and properties of public classes."""
    for package in NAMESPACES:
        module = importlib.import_module(package)
        for name in getattr(module, "__all__", vars(module)):
            value = getattr(module, name)
            if not name.startswith("_") and not (
                isinstance(value, ModuleType) and name not in getattr(module, "__all__", ())
            ):
                yield from with_members(f"{package}.{name}", value)
    for package in ROOMS:
        paths = importlib.import_module(package).__path__
        for found in pkgutil.walk_packages(paths, f"{package}."):
            module = importlib.import_module(found.name)
            for name, value in vars(module).items():
                here = getattr(value, "__module__", "") == found.name
                if here and inspect.isroutine(value) | inspect.isclass(value) and name[0] != "_":
                    yield from with_members(f"{found.name}.{name}", value)


def with_members(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    """A name, and the methods and properties of its class."""
    yield name, value
    for member, found in vars(value).items() if inspect.isclass(value) else ():
        if member[0] != "_" and isinstance(found, FunctionType | property | classmethod):
            yield f"{name}.{member}", getattr(value, member)


def undescribed(anchors: set[str]) -> Iterator[str]:
    """A line for each public name that has no docstring or is on no page of the site."""
    for name, value in public():
        is_described = inspect.isroutine(value) or inspect.isclass(value) or hasattr(value, "fget")
        if is_described and not inspect.getdoc(value):
            yield f"{name} has no docstring"
        elif isinstance(value, float):  # nnmpi.pi and others, which are those of math
            continue
        elif value.__doc__ and name not in anchors.union(NAMESPACES):
            yield f"{name} is on no page of docs/api"


def main(site: Path) -> int:
    pages = {path: Page(path) for path in site.resolve().rglob("*.html")}
    anchors = {anchor for page in pages.values() for anchor in page.anchors}
    site = site.resolve()
    found = [*broken(site, pages), *unlisted(site, pages), *undescribed(anchors)]
    print("\n".join([*found, f"{len(pages)} pages, {len(found)} problems"]))
    return bool(found) or not pages


if __name__ == "__main__":
    sys.exit(main(Path((sys.argv[1:] or ["build/site"])[0])))
