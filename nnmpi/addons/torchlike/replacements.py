"""Replacements for names of PyTorch that nnmpi does not have: functions, methods and modules.
`addons/finder.py` asks for them."""

import re
import sys
from functools import cache
from importlib.abc import Loader
from importlib.machinery import ModuleSpec
from itertools import chain
from pathlib import Path
from types import ModuleType

import numpy as np

from nnmpi.addons import finder

_OF_VALUES = " of t.numpy(), for values without a gradient"


@cache
def _rows() -> dict[str, list[tuple[str, str]]]:
    """The rows of `replacements.txt`, (pattern of names, sentence), by section."""
    text = Path(__file__).with_suffix(".txt").read_text(encoding="utf-8")
    rows: dict[str, list[tuple[str, str]]] = {}
    for block in text.split("\n\n"):
        sentence, *names = block.splitlines()
        if sentence.startswith("== "):
            section = rows.setdefault(sentence[3:], [])
        elif names and rows:
            section.append(("|".join(" ".join(names).split()), sentence))
    return rows


def instead(name: str, *sections: str) -> str:
    """Text to append to an error message about a missing name: a colon and advice on a replacement,
    which is looked up in the given sections of `replacements.txt`; empty if there is none."""
    for pattern, sentence in chain(*(_rows()[section] for section in sections)):
        if re.fullmatch(pattern, name):
            return f": {sentence.format(name=name)}"
    if sections[-1] == "functions and methods" and hasattr(np, name):
        return f": write numpy.{name}" + _OF_VALUES * callable(getattr(np, name))
    return ""


# ---- modules of PyTorch, such as nnmpi.nn.modules.conv and nnmpi.fft


def find_spec(fullname: str) -> ModuleSpec | None:
    """Returns how to load a module with the names of its package. Raises ModuleNotFoundError
    with advice for another one; returns None, for Python's own error, if there is none."""
    package, _, name = fullname.rpartition(".")
    path = fullname.partition(".")[2]
    known = vars(sys.modules[package]).get("_PACKAGES", ())  # to ask for one imports it
    if name in known:
        return None
    if instead(path, "modules with the names of their package"):
        spec = ModuleSpec(fullname, _NamesOfPackage(), is_package=True)
        spec.submodule_search_locations = [finder.ENTRY]
        return spec
    if not (advice := instead(path, "modules") or _advice_of(package, name)):
        return None
    raise ModuleNotFoundError(f"No module named {fullname!r}{advice}", name=fullname)


class _NamesOfPackage(Loader):
    """Loads a module that has the names of its package, and says what that says of other names."""

    def exec_module(self, module: ModuleType) -> None:
        """Gives a new module the names."""
        package = sys.modules[module.__name__.rpartition(".")[0]]
        vars(module).update({**vars(package), **vars(module)})  # __name__, __path__: its own


def _advice_of(package: str, name: str) -> str:
    """Returns a colon and what a package says of a name that is no module in it."""
    try:
        getattr(sys.modules[package], name)
    except AttributeError as error:
        _, colon, advice = str(error).partition(": ")
        return colon + advice
    return f": it is no module here, write from {package} import {name}"
