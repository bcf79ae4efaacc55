"""How docstrings become pages: an extension of griffe, which reads them for mkdocstrings."""

import re
from typing import Any

import griffe

ARGUMENT = re.compile(r"(\w+(?:, \w+)*): ")
"""A line that begins to say what an argument is; lines of it that follow are indented."""


class Paragraphs(griffe.Extension):  # type: ignore[misc]
    """Makes lists of arguments, and blocks of code of what is typed at a prompt."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Change the docstring of a module, a class, a function or an attribute."""
        if obj.docstring:
            paragraphs = obj.docstring.value.split("\n\n")
            obj.docstring.value = "\n\n".join(map(markdown, paragraphs))


def markdown(paragraph: str) -> str:
    """The paragraph of a docstring in Markdown."""
    lines = paragraph.split("\n")
    if paragraph.startswith(">>>"):
        return f"```pycon\n{paragraph}\n```"
    if not all(ARGUMENT.match(line) or line.startswith("    ") for line in lines):
        return paragraph
    return "\n".join(ARGUMENT.sub(r"- **\1**: ", line, count=1) for line in lines)
