"""Notes what a process asks for of add-ons that scripts/without has taken out of its tree.

`nnmpi.addons` of that tree runs this file in each process that imports it. NNMPI_GONE names a JSON
file that says what is gone (without.py makes it), and NNMPI_ASKED a file to which each process
appends a line for what it is asked for: pytest (left_out.py), programs that tests start, and ranks.

    tables    {table: [key]}: a look-up of a key, such as that of a model, a method or a layer
    memory    [key]: a row of the table `memory` that nnmpi cannot do without; it looks up others
              in each run
    options   [name]: a flag of a command, a key of a file of options, an argument of Config
    values    {option: [value]}: likewise; and subcommands
    modules   [name]: an import of the module, or of one in it, by anything but nnmpi itself
    fixtures  [name]: see left_out.py
"""

import argparse
import json
import os
import re
import sys
from collections.abc import Callable
from functools import cache, wraps
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import FrameType, ModuleType
from typing import Any

OWN = f"{Path(__file__).resolve().parents[1] / 'nnmpi'}{os.sep}"
FORWARD = f"{os.sep}importlib{os.sep}", f"{OWN}addons{os.sep}__init__.py", __file__
"""Parts of the paths of files that ask for what another one has asked them for."""

GONE: dict[str, Any] = json.loads(Path(os.environ["NNMPI_GONE"]).read_text(encoding="utf-8"))


def note(kind: str, name: str) -> None:
    """Appends a line to the file: a gone thing of this kind was asked for."""
    with open(os.environ["NNMPI_ASKED"], "a", encoding="utf-8") as file:
        file.write(f"{kind} {name}\n")


def is_own() -> bool:
    """True if a file of nnmpi asks, for a program that has not. A package whose `__getattr__` runs
    was asked itself."""
    frame: FrameType | None = sys._getframe(1)
    while frame:
        code = frame.f_code
        path = code.co_filename
        forwards = path.startswith("<frozen ") or any(part in path for part in FORWARD)
        if code.co_name != "__getattr__" and not forwards:
            return path.startswith(OWN)
        frame = frame.f_back
    return False


def watch() -> None:
    """Watches the tables, command lines and imports of this process."""
    watch_tables(sys.modules["nnmpi.addons"])
    watch_command_lines()
    watch_imports()


# ---- tables


ATTRIBUTES = ("names",)
"""Tables of what programs ask objects for. The keys of others come through nnmpi from programs."""


def gone_of(table: str) -> set[str]:
    """Returns the keys of a table that are gone."""
    return {*GONE["tables"].get(table, ())}


class Rows(dict[str, Any]):
    """A table, that notes when a row is looked up that is gone."""

    def __init__(self, rows: Any, table: str, gone: set[str]) -> None:
        super().__init__(rows)
        self.table, self.gone = table, gone

    def get(self, key: str, default: Any = None) -> Any:
        self._look(key)
        return super().get(key, default)

    def __getitem__(self, key: str) -> Any:
        self._look(key)
        return super().__getitem__(key)

    def __contains__(self, key: object) -> bool:
        self._look(key)
        return super().__contains__(key)

    def _look(self, key: object) -> None:
        # programs ask for names themselves; nnmpi looks up the keys of other tables for them, and
        # what a Trainer asks for
        of_program = self.table == "names" and not str(key).startswith("Trainer.")
        if key in self.gone and not (of_program and is_own()):
            note(self.table, str(key))


def watch_tables(addons: Any) -> None:
    """Watches the look-ups of keys."""
    table, names_of = addons.table, addons.names_of

    def watched_names(package: str) -> Rows:
        full = (f"nnmpi.{key}".rpartition(".") for key in gone_of("names"))
        inside = {name for of, _, name in full if of == package}
        return Rows(names_of(package), "names", inside)

    addons.table = cache(lambda name: Rows(table(name), name, gone_of(name)))
    addons.names_of = watched_names


# ---- options


def ask_for(option: str, value: object = None) -> None:
    """Notes an option, or this value of it, if it is gone."""
    name = option.lstrip("-").partition("=")[0].replace("-", "_")
    if {name, name.removeprefix("no_")} & {*GONE["options"]}:
        note("option", name)
    if value in GONE["values"].get(name, ()):
        note(f"option {name}", str(value))


def ask_for_layout(spec: str) -> None:
    """Notes terms of a layout: an axis of activations, one of the mesh (an option has its size), or
    a way to divide a layer."""
    gone = gone_of("layout_axes") | {*GONE["options"]}
    for word in re.findall(r"\w+", spec):
        if word in gone:
            note("layout", word)


def watch_command_lines() -> None:
    """Watches the flags that a parser does not know, and the values that it refuses."""
    parser: Any = argparse.ArgumentParser
    parse, check = parser.parse_known_args, parser._check_value

    @wraps(parse)
    def watched_parse(self: Any, args: Any = None, namespace: Any = None) -> Any:
        known, unknown = parse(self, args, namespace)
        for word in unknown:
            ask_for(word)
        return known, unknown

    @wraps(check)
    def watched_check(self: Any, action: argparse.Action, value: Any) -> Any:
        ask_for(action.dest, value)
        return check(self, action, value)

    parser.parse_known_args, parser._check_value = watched_parse, watched_check


def watch_config(module: Any) -> None:
    """Watches the arguments of Config, and keys of files of options."""
    config, not_an_option = module.Config, module.not_an_option
    new = config.__new__

    def watched_new(cls: type, *args: Any, **given: Any) -> Any:
        for option, value in given.items():
            ask_for(option, value)
        return new(cls, *args, **given)

    def watched_name(name: str) -> str:
        ask_for(name)
        return str(not_an_option(name))

    config.__new__, module.not_an_option = watched_new, watched_name


def watch_layouts(module: Any) -> None:
    """Watches the terms of layouts."""
    parse = module.layout

    @wraps(parse)
    def watched(spec: str) -> Any:
        ask_for_layout(spec)
        return parse(spec)

    module.layout = watched


def watch_commands(module: Any) -> None:
    """Watches the names of commands."""
    module.COMMANDS = Rows(module.COMMANDS, "commands", gone_of("commands"))


def watch_memory(module: Any) -> None:
    """Watches what tensors that share memory cannot do without; plain runs look up the rest."""
    needed = module.memory_needed

    def watched(name: str) -> Any:
        if name in GONE["memory"]:
            note("memory", name)
        return needed(name)

    module.memory_needed = watched


# ---- imports

LOADED: dict[str, Callable[[Any], None]] = {
    "nnmpi.options.config": watch_config,
    "nnmpi.options.value_forms": watch_layouts,
    "nnmpi.commands": watch_commands,
    "nnmpi.autograd.recording": watch_memory,
}
"""What watches a module once it is loaded."""


def watch_imports() -> None:
    """Watches which modules are looked for. `sys.meta_path` stays: a test compares it."""
    find, gone = PathFinder.find_spec, GONE["modules"]

    def watched(
        _: type, name: str, path: Any = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if any(f"{name}.".startswith(f"{module}.") for module in gone) and not is_own():
            note("module", name)
        spec = find(name, path, target)
        if spec and spec.loader and name in LOADED:
            watch_loaded(spec.loader, LOADED[name])
        return spec

    finder: Any = PathFinder
    finder.find_spec = classmethod(watched)
    for other in sys.meta_path:  # an editable installation finds what is gone in another tree
        if "Editable" in getattr(other, "__name__", ""):
            other.find_spec = lambda *_: None


def watch_loaded(loader: Any, watch_it: Callable[[Any], None]) -> None:
    """Watches a module once it is loaded."""
    run = loader.exec_module

    def watched(module: ModuleType) -> None:
        run(module)
        watch_it(module)

    loader.exec_module = watched


watch()
