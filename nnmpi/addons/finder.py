"""Finds modules of nnmpi that have their code in an add-on's folder, by the table `modules`, and
says of names and modules that are missing what an add-on knows to write instead.

An entry in the `__path__` of a package makes Python ask here for modules that are not in the
package's folder. A finder in `sys.meta_path` would be asked for all modules of the process.
"""

import sys
from collections.abc import Callable
from importlib import import_module
from importlib.abc import Loader
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType
from typing import NoReturn

from nnmpi.addons import Table

MODULES: Table[ModuleType] = Table("modules")
"""By name, without nnmpi: a module that is found under this name too, with the modules in it."""

ENTRY = __file__
"""The entry for the `__path__` of a package some of whose modules are in add-ons."""


class _Finder(Loader):
    """Finds the modules, and gives them one name more."""

    def find_spec(self, fullname: str, target: ModuleType | None = None) -> ModuleSpec | None:
        """Returns how to load a module whose code is in an add-on; None for one in its package's
        folder. Of others an add-on says what to write instead."""
        if _place(fullname):
            return ModuleSpec(fullname, self)
        package = sys.modules[fullname.rpartition(".")[0]]
        if PathFinder.find_spec(fullname, [path for path in package.__path__ if path != ENTRY]):
            return None
        advice = MODULES.row(REPLACEMENTS)
        spec: ModuleSpec | None = advice.find_spec(fullname) if advice else None
        return spec

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
    name = module.rpartition(".")[0]
    if not (name in sys.modules or _is_there(name)):
        return False
    package = import_module(name)
    folder = str(Path(str(package.__file__)).parent)
    is_package = folder in getattr(package, "__path__", ())
    return is_package and PathFinder.find_spec(module, [folder]) is not None


sys.path_importer_cache[ENTRY] = _Finder()  # where Python keeps the finder of each path


# ---- names that are missing

REPLACEMENTS = "autograd.replacements"
"""The module of an add-on that knows what to write for names of PyTorch."""


def instead(name: str, *sections: str) -> str:
    """Returns text to append to an error message about a missing name: a colon and advice on a
    replacement, from these sections of an add-on's list; empty if there is none."""
    probes = name.startswith("__")  # as Python and NumPy often do
    advice = None if probes else MODULES.row(REPLACEMENTS)
    return advice.instead(name, *sections) if advice else ""


def no_attribute(name: str) -> str:
    """Returns the message for an attribute that tensors lack, with advice if there is any."""
    return f"a tensor has no attribute {name!r}{instead(name, 'functions and methods')}"


def no_name(package: str, name: str, *sections: str) -> str:
    """Returns the message for a name that a package lacks, with advice if there is any."""
    message = f"{package} has no {name!r}"
    is_probe = sys._getframe(2).f_code.co_name == "_handle_fromlist"  # Python drops the message
    return message if is_probe else message + instead(name, *sections)


def missing(message: str) -> Exception:
    """The error of a module's `__getattr__` for a name that it does not have: an ImportError for
    `from module import name`, since Python replaces the message of an AttributeError there."""
    from opcode import opmap  # rarely

    asking = sys._getframe(2)
    is_import = asking.f_code.co_code[asking.f_lasti] == opmap["IMPORT_FROM"]
    return (ImportError if is_import else AttributeError)(message)


def refuser(package: str, *kinds: str) -> Callable[[str], NoReturn]:
    """Returns the `__getattr__` of a module that has all its names in itself: it raises the error
    for another one, with advice from the sections `kinds`."""

    def refused(name: str) -> NoReturn:
        raise missing(no_name(package, name, *kinds))

    return refused
