"""Finds modules of nnmpi that have their code in an add-on's folder, by the table `modules`.

An entry in the `__path__` of a package makes Python ask here for modules that are not in the
package's folder. A finder in `sys.meta_path` would be asked for all modules of the process.
"""

import sys
from importlib import import_module
from importlib.abc import Loader
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType

from nnmpi.addons import table

ENTRY = __file__
"""The entry for the `__path__` of a package some of whose modules are in add-ons."""


class _Finder:
    def find_spec(self, fullname: str, target: ModuleType | None = None) -> ModuleSpec | None:
        """Returns how to load a module whose code is in an add-on; None for any other."""
        package, places = fullname.partition(".")[2], table("modules")
        rest = ""
        while package and package not in places:
            package, _, name = package.rpartition(".")
            rest = f".{name}{rest}"
        if not package:
            return None
        place = places[package] + rest
        return ModuleSpec(fullname, _Elsewhere(place)) if not rest or _is_there(place) else None


def _is_there(module: str) -> bool:
    """True if a module is in the folder of its package, whose other entries raise errors."""
    package = import_module(module.rpartition(".")[0])
    folder = str(Path(str(package.__file__)).parent)
    is_package = folder in vars(package).get("__path__", ())
    return is_package and PathFinder.find_spec(module, [folder]) is not None


class _Elsewhere(Loader):
    """Gives a module one name more: `place` is the name of the module that has the code."""

    def __init__(self, place: str) -> None:
        self.place = place

    def exec_module(self, module: ModuleType) -> None:
        """Puts the module that has the code in the new one's place."""
        there = sys.modules[module.__name__] = import_module(self.place)
        path = vars(there).get("__path__")
        if path and ENTRY not in path:  # before its folder, from which modules would load twice
            path.insert(0, ENTRY)


sys.path_importer_cache[ENTRY] = _Finder()  # where Python keeps the finder of each path
