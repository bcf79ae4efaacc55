"""Finds modules of nnmpi that have their code in an add-on's folder, by the table `modules`.

An entry in the `__path__` of a package makes Python ask here for modules that are not in the
package's folder. A finder in `sys.meta_path` would be asked for all modules of the process.
"""

import sys
from functools import partial
from importlib import import_module
from importlib.abc import Loader
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import ModuleType

from nnmpi.addons import table

ENTRY = __file__
"""The entry for the `__path__` of a package some of whose modules are in add-ons."""


class _Finder:
    def find_spec(self, fullname: str, target: ModuleType | None = None) -> ModuleSpec | None:
        """Returns how to load a module whose code is in an add-on; None for any other."""
        package, _, name = fullname.rpartition(".")
        if place := vars(sys.modules[package]).get("_PLACE"):
            where = f"{place}.{name}"
            found = find_spec(where) is not None
        else:
            where = table("modules").get(fullname.partition(".")[2], "")
            found = bool(where)
        return ModuleSpec(fullname, _Elsewhere(where), is_package=True) if found else None


class _Elsewhere(Loader):
    """Loads a module under one name more: `place` is the name of the module that has the code."""

    def __init__(self, place: str) -> None:
        self.place = place

    def exec_module(self, module: ModuleType) -> None:
        """Puts the module that has the code in the new one's place. A package keeps its own, which
        forwards: with the folder of the other, its modules would be loaded twice."""
        there = import_module(self.place)
        if hasattr(there, "__path__"):
            forward = partial(getattr, there)
            vars(module).update(_PLACE=self.place, __path__=[ENTRY], __getattr__=forward)
        else:
            sys.modules[module.__name__] = there


sys.path_importer_cache[ENTRY] = _Finder()  # where Python keeps the finder of each path
