"""A word means one thing: classes have names of their own, and the glossary in docs/ is true."""

import ast
import re
from collections import defaultdict
from collections.abc import Iterator

import pytest
from helpers.mpijob import ROOT

PAGE = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "docs").glob("glossary*.md"))
ROWS = re.findall(r"^\| (.*?) \| (.*?) \| ((?:`nnmpi/[\w/.]+`(?:, )?)+) \|$", PAGE, re.M)


def names_of_types() -> Iterator[tuple[str, str, bool]]:
    """(name, file, whether it is a class) of each class, and of each type alias of a module."""
    for path in sorted((ROOT / "nnmpi").rglob("*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef):
                yield node.name, path.name, True
        for node in tree.body:
            if isinstance(node, ast.Assign | ast.AnnAssign):
                (name,) = node.targets[:1] if isinstance(node, ast.Assign) else [node.target]
                if isinstance(name, ast.Name) and re.fullmatch("[A-Z][A-Za-z]*[a-z]", name.id):
                    yield name.id, path.name, False


def test_no_two_classes_and_no_class_and_alias_have_one_name() -> None:
    found = defaultdict[str, list[tuple[str, bool]]](list)
    for name, file, is_class in names_of_types():
        found[name].append((file, is_class))
    several = {name: there for name, there in found.items() if len(there) > 1}
    assert not {name: there for name, there in several.items() if any(one for _, one in there)}


def test_every_file_that_the_glossary_names_is_there() -> None:
    for name in re.findall(r"`((?:nnmpi|docs|tests)/[\w/]+\.\w+)`", PAGE):
        assert (ROOT / name).exists(), name


@pytest.mark.parametrize(("words", "meaning", "files"), ROWS, ids=[row[0] for row in ROWS])
def test_each_word_of_the_glossary_is_in_its_file(words: str, meaning: str, files: str) -> None:
    """A name in code is defined there; another word is used there."""
    texts = [(ROOT / name).read_text(encoding="utf-8") for name in re.findall("`(.*?)`", files)]
    for word in words.split(", "):
        name = re.escape(word.strip("`"))
        defined = (
            rf"^\s*(class|def) {name}\b|\b{name}(: [^=\n]*)? = " if "`" in word else rf"\b{name}"
        )
        assert any(re.search(defined, text, re.M | re.I * ("`" not in word)) for text in texts)
