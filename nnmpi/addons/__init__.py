"""The add-ons of nnmpi: parts that can be left out, and the objects that they add to tables of
core.

Each add-on has a folder here, whose `addon.py` says what the add-on needs and what it adds. Core
imports no add-on. It asks here for the object that a table has under a key, and its module is
imported only then. `scripts/without NAME` takes out an add-on's folder and modules, and tests the
rest.

A table is a `Table` (below), declared in the module that asks for its objects, with their type and
one sentence; `grep -rn "Table(" nnmpi` lists all. A test checks each row against the type.
"""

from collections.abc import Container, Iterator, Mapping
from functools import cache
from importlib import import_module
from importlib.machinery import SourceFileLoader
from operator import attrgetter
from pathlib import Path
from typing import Any, Generic, NamedTuple, TypeVar

T = TypeVar("T")


class AddOn(NamedTuple):
    """An add-on: an optional part of nnmpi, described by the files that make it up and what it
    adds.

    modules   its folders and files
    uses      the add-ons that it imports
    rows      the rows that it adds to tables of core, {table: {key: "module:name"}}; "module" alone
              stands for the module itself
    commands  by name: the module whose `parser()` defines the options, and a short description
    files     other files and folders that are removed with the add-on, besides tests that import
              its modules
    of_step   its modules whose functions change nothing but their arguments, so that a recorded
              step may call them
    classes_of_step  those whose classes it may use
    """

    modules: tuple[str, ...]
    uses: tuple[str, ...] = ()
    rows: Mapping[str, Mapping[str, str]] = {}
    commands: Mapping[str, tuple[str, str]] = {}
    files: tuple[str, ...] = ()
    of_step: tuple[str, ...] = ()
    classes_of_step: tuple[str, ...] = ()


# ---- functions that read the list


@cache
def table(name: str) -> Mapping[str, str]:
    """Returns the rows of a table, {key: "module:name"}, of all add-ons that are installed."""
    return {key: where for a in ADD_ONS.values() for key, where in a.rows.get(name, {}).items()}


def names_of(package: str) -> dict[str, str]:
    """Returns {name: "module:name"}: the names that add-ons add to a package, "nnmpi" or one in
    it, and where each is defined."""
    full = {f"nnmpi.{key}".rpartition("."): where for key, where in table("names").items()}
    return {name: where for (of, _, name), where in full.items() if of == package}


class Table(Generic[T]):
    """A table of the objects (functions, classes, values or modules) that add-ons give, each under
    a key. An object's module is imported when the object is used for the first time.

    where  {key: "module:name"}, of all add-ons that are installed
    """

    def __init__(self, name: str) -> None:
        self.where = table(name)

    def row(self, key: str) -> T | None:
        """Returns the object under a key, such as the class RAdam under "radam" in the table of
        optimizers; None if no installed add-on has it."""
        where = self.where.get(key)
        return None if where is None else loaded(where)

    def needed(self, key: str) -> T:
        """Returns the object under a key; raises AttributeError if no installed add-on has it."""
        if (value := self.row(key)) is None:
            raise AttributeError(f"{key} is of an add-on that is not here: install nnmpi with it")
        return value

    def rows(self) -> Iterator[T]:
        """Yields every object of the table."""
        return map(loaded, self.where.values())

    def given(self, options: object) -> Iterator[T]:
        """Yields the objects that `options`, such as a Config, ask for. Their keys are options
        whose value is not the default, or features (`_features`) that are switched on."""
        features, plain = _features(), type(options)  # a dataclass has its defaults as attributes
        for key, where in self.where.items():
            if key in features and features[key].asks:
                is_given = bool(features[key].asked(options, 0))
            else:
                is_given = getattr(options, key) != getattr(plain, key)
            if is_given:
                yield loaded(where)

    def chosen(self, options: object) -> T | None:
        """Returns the first object that `options` ask for (see `given`), or None."""
        return next(self.given(options), None)

    def of_fields(self, fields: Container[str]) -> Iterator[T]:
        """Yields the objects whose keys are among `fields`, those of an entry of the run's log."""
        return (loaded(where) for key, where in self.where.items() if key in fields)


@cache
def _features() -> dict[str, Any]:
    """Returns the features of all add-ons by name. A feature is what a run can be asked to do by
    one or more options, such as to continue when ranks are lost."""
    parts = map(loaded, table("options").values())
    return {f.name: f for part in parts for f in part.features}


def loaded(where: str) -> Any:
    """Imports a module and returns it, or, for "module:name", its attribute."""
    module, _, attribute = where.partition(":")
    value = import_module(module)
    return attrgetter(attribute)(value) if attribute else value


def places(modules: Mapping[str, str], package: str = "") -> dict[str, str]:
    """Returns rows for the table `names`, {"package.name": "nnmpi.module:name"}. `modules` has for
    each module its names, separated by spaces; `package` is a prefix of the keys."""
    return {
        f"{package}{name}": f"nnmpi.{module}:{name}"
        for module, names in modules.items()
        for name in names.split()
    }


def _read(name: str) -> AddOn:
    """Returns the AddOn that `addon.py` in the folder of an add-on defines. The file is run without
    being imported, since an import would load the package around it."""
    module = f"{__name__}.{name}.addon"
    code = SourceFileLoader(module, str(_HERE / name / "addon.py")).get_code(module)
    assert code is not None
    defined = dict[str, Any]()
    exec(code, defined)
    add_on: AddOn = defined["ADD_ON"]
    return add_on


NAMES = """
simulator compression swapping nccl cuda winograd proof planning pages images language servers
averaging pipedream checks recovery checkpoints trace course layer_ways transformer recurrent
torchlike optimizers interop compile doctor
"""
"""The add-ons, by the names of their folders, in the order of their options in `--help`."""

_HERE = Path(__file__).parent
ADD_ONS = {name: _read(name) for name in NAMES.split() if (_HERE / name / "addon.py").is_file()}
"""The add-ons that are installed, by name."""
