"""Turns docstrings into pages: an extension of griffe, which reads them for mkdocstrings."""

import importlib
import inspect
import re
from operator import or_
from types import FunctionType
from typing import Any

import griffe

ARGUMENT = re.compile(r"(\w+(?:, \w+)*(?:\([\w, ]+\))?)(?:: | {2,})")
"""The beginning of a line that describes an argument or a field; continuation lines are
indented."""


class Docstrings(griffe.Extension):  # type: ignore[misc]
    """Makes Markdown of all docstrings, also of methods that are made at run time."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Changes the docstring of a module, a class, a function or an attribute."""
        if obj.is_attribute and not obj.docstring and isinstance(obj.value, griffe.ExprCall):
            text = docstring_at_run_time(obj) if obj.parent.is_class else ""
            obj.docstring = griffe.Docstring(text, parent=obj) if text else None
        if obj.docstring:
            obj.docstring.value = "\n\n".join(map(markdown, obj.docstring.value.split("\n\n")))


def docstring_at_run_time(attribute: griffe.Attribute) -> str:
    """The docstring of a class attribute that is a method or a property; otherwise empty."""
    try:
        found: Any = importlib.import_module(attribute.module.path)
    except ModuleNotFoundError:  # nnmpi.torch without PyTorch, of which no page is made
        return ""
    for name in attribute.path.removeprefix(f"{attribute.module.path}.").split("."):
        found = inspect.getattr_static(found, name, None)
    return inspect.getdoc(found) or "" if isinstance(found, FunctionType | property) else ""


def markdown(paragraph: str) -> str:
    """A paragraph of a docstring in Markdown."""
    lines = paragraph.split("\n")
    if paragraph.startswith(">>>"):
        return f"```pycon\n{paragraph}\n```"
    starts = [ARGUMENT.match(line) is not None for line in lines]
    if not starts[0] or not all(map(or_, starts, (line.startswith("    ") for line in lines))):
        return paragraph
    return "\n".join(ARGUMENT.sub(r"- **\1**: ", line, count=1) for line in lines)
