"""ReadNames: the names of attributes that users' code reads of values which are not known, such as
its arguments. Such an attribute counts as one of every module (layer) of the model."""

from collections.abc import Iterable, Sequence
from typing import Any

from nnmpi.nn.bytecode import Operation
from nnmpi.nn.known_values import PUBLIC, UNSEEN
from nnmpi.nn.module import Module
from nnmpi.nn.registries import OF_ALL
from nnmpi.nn.users_code import UnfitError, is_code, is_own

UNREAD = {"__init__", "__new__", "__repr__", "__eq__", "__hash__"}
"""Special methods of modules that a pass does not call."""

OF_MODULE_ITSELF = OF_ALL | {name for name in UNSEEN if hasattr(Module, name)}
"""Attributes of modules by which code could read or change state without notice."""


class ReadNames:
    """The names of the attributes that code reads of unknown values: `of_values` of any, and by
    which code; `of_modules` by methods of modules, of their own. Raises UnfitError for names by
    which code could read what changes."""

    def __init__(self) -> None:
        self.of_values = dict[str, str]()
        self.of_modules = {"forward"}
        self._is_any = False  # methods of modules read names that are not constants

    def __len__(self) -> int:
        return len(self.of_values) + len(self.of_modules)

    def note(self, attribute: str, name: str) -> None:
        """Notes that the function `name` reads an attribute of a value that is not known."""
        if attribute[:2] == "__" or attribute in UNSEEN | OF_ALL:
            raise UnfitError(f"{name} uses {attribute}, by which it may read what changes")
        self.of_values.setdefault(attribute, name)

    def note_of_module(self, attribute: str, name: str) -> None:
        """Notes that the method `name` reads an attribute of its own module."""
        if attribute in OF_MODULE_ITSELF or (attribute[:2] == "__" and attribute != "__class__"):
            raise UnfitError(f"{name} uses {attribute}, by which it may read what changes")
        self.of_modules.add(attribute)

    def note_use(self, function: Any, given: Sequence[Operation], name: str) -> None:
        """Notes which attribute a method of a module, whose name is `name`, reads by `getattr` or
        `hasattr`; `given` are the operations that load the arguments of that."""
        if function in (getattr, hasattr):
            word = given[1].argument if given[1].name == "LOAD_CONST" else None
            if isinstance(word, str):
                self.note_of_module(word, name)
            else:
                self._is_any = True

    def has(self, name: str, value: Any) -> bool:
        """True if the code may read the attribute `name`, which has this value, of a module."""
        is_special = name[:2] == "__" and name not in UNREAD and is_code(value)
        return is_special or name in self.of_modules or name in self.of_values or self._is_any

    def check(
        self, modules: Iterable[Module], objects: Sequence[Any], methods: Sequence[str]
    ) -> None:
        """Raises UnfitError if the code reads an attribute whose change could go unnoticed: of none
        of the compared `modules` and `objects` (of which it may use `methods`)."""
        for attribute, name in self.of_values.items():
            if attribute in PUBLIC or attribute in methods:
                continue
            if any(hasattr(item, attribute) for item in objects):
                raise UnfitError(
                    f"{name} uses {attribute}: of an optimizer, a step may use "
                    + " and ".join(methods),
                    "; set its options outside of the step, each call of which reads them, or "
                    "write step(lr_factor=x) with an argument x",
                )
            owners = [m for m in modules if hasattr(m, attribute)]
            if not owners or (attribute[0] == "_" and any(map(is_own, owners))):
                raise UnfitError(
                    f"{name} reads .{attribute} of a value whose attributes are not compared"
                )
