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

from nnmpi.addons import Table

MODULES: Table[ModuleType] = Table("modules")
"""By name, without nnmpi: a module that is found under this name too, with the modules in it."""

ENTRY = __file__
"""The entry for the `__path__` of a package some of whose modules are in add-ons."""


class _Finder(Loader):
    """Finds the modules, and gives them one name more."""

    def find_spec(self, fullname: str, target: ModuleType | None = None) -> ModuleSpec | None:
        """Returns how to load a module whose code is in an add-on; None for any other."""
        return ModuleSpec(fullname, self) if _place(fullname) else None

    def exec_module(self, module: ModuleType) -> None:
        """Puts the module that has the code in the new one's place."""
        there = sys.modules[module.__name__] = import_module(_place(module.__name__))
        path = vars(there).get("__path__")
        if path and ENTRY not in path:  # before its folder, from which modules would load twice
            path.insert(0, ENTRY)


def _place(fullname: str) -> str:
    """Returns the module that has the code of a module of nnmpi, or an empty text."""
    name, places, rest = fullname.partition(".")[2], MODULES.where, ""
    while name and name not in places:
        name, _, last = name.rpartition(".")
        rest = f".{last}{rest}"
    place = f"{places[name]}{rest}" if name else ""
    return place if not (place and rest) or _is_there(place) else ""


def _is_there(module: str) -> bool:
    """True if a module is in the folder of its package, whose other entries raise errors."""
    package = import_module(module.rpartition(".")[0])
    folder = str(Path(str(package.__file__)).parent)
    is_package = folder in getattr(package, "__path__", ())
    return is_package and PathFinder.find_spec(module, [folder]) is not None


sys.path_importer_cache[ENTRY] = _Finder()  # where Python keeps the finder of each path
