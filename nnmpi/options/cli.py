"""Functions that commands share: options from flags and files, errors in one line."""

import argparse
import json
import os
import sys
import tomllib
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import Field
from itertools import chain
from pathlib import Path
from typing import Any, NoReturn, TypeVar

from nnmpi.options import user_code, value_forms
from nnmpi.options.config import Config, not_an_option, options
from nnmpi.options.groups import GROUPS
from nnmpi.options.option import kind_of
from nnmpi.options.quoting import nearest, quoted, shown
from nnmpi.options.user_files import content, parsed
from nnmpi.options.value_forms import check_text

MOST_CHARACTERS, MOST_OF_WORD = 4000, 400  # characters in a line on stderr, and in a word of it
LONGEST_FILE = 1_000_000  # bytes in a file of options

T = TypeVar("T")


class Parser(argparse.ArgumentParser):
    """An ArgumentParser that raises ValueError instead of exiting. `program` is the name of a
    command, such as nnmpi.train; parsers of subcommands have a `prog`."""

    def __init__(self, program: str = "", **how: Any) -> None:
        if program:
            how["prog"] = called(program)
        super().__init__(allow_abbrev=False, **how)
        self.program = program

    def error(self, message: str) -> NoReturn:
        lacks = message.startswith("the following arguments are required")
        raise ValueError(f"{message}; see {self.prog} --help" if lacks else message)

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Parses the arguments; the error for unknown ones has the nearest option as a hint.
        argparse calls this method for the parser of a subcommand too."""
        known, unknown = super().parse_known_args(args, namespace)
        if unknown:
            options = [word.partition("=")[0] for word in unknown if word.startswith("--")]
            hints = [nearest(option, self._option_string_actions) for option in options]
            self.error(f"unrecognized arguments: {' '.join(unknown)}{''.join(hints)}")
        return known, unknown


def called(program: str) -> str:
    """Returns how a command was called: `nnmpi train` or `python -m nnmpi.train`."""
    by_name = "nnmpi" in [Path(word).name for word in sys.orig_argv[1:3]]  # -m nnmpi, or bin/nnmpi
    return program.replace(".", " ") if by_name else f"python -m {program}"


def argument(parse: Callable[[str], T]) -> Callable[[str], T]:
    """Makes a `type=` function of argparse, which shows the ValueError of `parse`."""

    def parsed_argument(text: str) -> T:
        try:
            return parse(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from None

    return parsed_argument


def add_flags(p: argparse.ArgumentParser, groups: Iterable[str] = GROUPS) -> None:
    """Adds a flag for each option of the given groups."""
    for group in groups:
        flag_group = p.add_argument_group(group)
        for option in options((group,)):
            add_flag(flag_group, option)


def add_flag(parser: Any, o: "Field[Any]") -> None:
    """Adds the command-line flag of one option of Config to an argparse parser."""
    m = o.metadata
    flags = [f"--{n.replace('_', '-')}" for n in (o.name, m["alias"]) if n is not None]
    is_shown = o.default is not None and o.default is not False and "default" not in m["help"]
    text = m["help"] + (f" (default {o.default})" if is_shown else "")
    if m["custom"] and "package.module" not in text:
        text += f": {', '.join(m['choices'])} or package.module:NAME"
    text = text.replace("%", "%%")  # argparse formats help texts with %
    if kind_of(o) is bool:
        parser.add_argument(*flags, action=argparse.BooleanOptionalAction, help=text)
        return
    choices = None if m["custom"] else m["choices"] or None
    # argparse shows choices as {a,b}, which choices with commas would garble
    listed = choices and not any("," in str(choice) for choice in choices)
    metavar = None if listed else o.name.split("_")[-1].upper()
    arguments: dict[str, Any] = {"choices": choices, "metavar": metavar, "help": text}
    if m["bare"] is not None:
        arguments |= {"nargs": "?", "const": m["bare"]}
    parser.add_argument(*flags, type=kind_of(o), **arguments)


def from_toml(path: str) -> Config:
    """Returns the Config in a TOML file; its tables, if it has any, are groups of options."""
    return _of_file("config", path, lambda table: Config(**with_layout(_by_name(table))))


LAYOUT_GROUPS = ("layout", "pipeline", "reduce")
"""The groups of options that determine how ranks share a step."""

LAYOUT = tuple(o.name for o in options(LAYOUT_GROUPS))
"""The options that a --layout file may contain."""


def with_layout(given: dict[str, Any]) -> dict[str, Any]:
    """Returns the options `given` by the user, by name, together with those in the file that the
    option --layout names, if it names a file. If both have an option, the given value is used."""
    path = given.get("layout")
    if not isinstance(path, str) or not path.endswith(".toml"):
        return given
    rest = {name: value for name, value in given.items() if name != "layout"}
    return {**from_layout(path), **rest}


def from_layout(path: str) -> dict[str, Any]:
    """Returns the options in a --layout file by name, as arguments of Config."""

    def made(table: dict[str, Any]) -> dict[str, Any]:
        ways = table.pop("ways", {})
        options = _by_name(table)
        for name in options:
            if name not in LAYOUT or name == "layout":
                raise ValueError(f"{name} is not an option of layouts; give it as a flag")
        if not isinstance(ways, dict):
            raise ValueError("ways must be a table: write [ways], and below it LAYER = WAY")
        for layer, how in ways.items():
            if not isinstance(how, str):
                raise ValueError(
                    f"ways of {shown(layer)}: {quoted(how)} is not a string; put paths with dots "
                    'in quotes, as "features.0" = "samples"'
                )
            if ":" in layer:
                raise ValueError(
                    f"ways: {shown(layer)} is not the path of a layer; give it with --layout"
                )
        if ways:
            options["layout"] = ",".join(f"{path}={how}" for path, how in ways.items())
            value_forms.layout(options["layout"])
        return options

    return _of_file("layout", path, made)


def layout_file(config: Config, ways: Mapping[str, str]) -> str:
    """Returns the text of a --layout file: the options of `config` that say how ranks divide the
    work. `ways` has, by the path of each layer, how it is divided among ranks, such as "column"."""
    plain, lines = Config(), list[str]()
    for name in LAYOUT:
        value = getattr(config, name)
        if name != "layout" and value != getattr(plain, name):
            lines.append(f"{name} = {json.dumps(value)}")
    rows = [f"{json.dumps(path)} = {json.dumps(how)}" for path, how in ways.items()]
    return "\n".join([*lines, *["[ways]"] * bool(rows), *rows, ""])


def _of_file(option: str, path: str, made: Callable[[dict[str, Any]], T]) -> T:
    """Parses the TOML file at `path`, which the user has named with `option` (such as --layout),
    and returns `made(table)`. A ValueError names the option and the file."""
    check_text(option, path)
    file = f"{option} {shown(path)}"
    readable = "name a TOML file that can be read"
    text = content(path, file, LONGEST_FILE, readable, "name a file of options")
    try:
        return made(parsed(tomllib.loads, text.decode()))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"{file}: it is not TOML: {shown(error)}") from None
    except ValueError as error:
        raise ValueError(f"{file}: {error}") from None


def refuse_code(path: str, of_file: Config, given: Container[str]) -> None:
    """Raises ValueError if a file of options, `of_file`, names code to import, such as
    package.module:NAME, unless the user has set that option by a flag too (`given`)."""
    for option in options():
        name, value = option.name, getattr(of_file, option.name)
        is_code = option.metadata["custom"] and value is not None and user_code.is_named(value)
        if is_code and name not in given:
            raise ValueError(
                f"config {shown(path)}: {name} {quoted(value)} would import and run the code of "
                f"{shown(value.partition(':')[0])}; add --allow-code if you trust this file"
            )


def _by_name(table: dict[str, Any]) -> dict[str, Any]:
    """Returns a TOML table by Config's names; raises ValueError for others."""
    names = {o.name: o.name for o in options()}
    names |= {o.metadata["alias"]: o.name for o in options() if o.metadata["alias"]}
    values: dict[str, Any] = {}
    spelling: dict[str, str] = {}
    tables = (  # a table named after a group holds options; any other key is an option itself
        value.items() if key in GROUPS and isinstance(value, dict) else [(key, value)]
        for key, value in table.items()
    )
    for key, value in chain.from_iterable(tables):
        name = names.get(key.replace("-", "_"))
        if name is None:
            raise ValueError(not_an_option(key))
        if name in values:
            spellings = f" as {spelling[name]} and as {key}" if spelling[name] != key else ""
            raise ValueError(f"{name} is given twice{spellings}; keep one of them")
        values[name], spelling[name] = value, key
    return values


SMALLER = "take fewer ranks, or a smaller model or batch"
"""The advice for a run that does not fit in memory."""


def main(
    p: Parser,
    command: Callable[[argparse.Namespace], int],
    arguments: Sequence[str] | None,
    memory: str = SMALLER,
) -> int:
    """Parses the command line (`arguments`; None: that of the process), and runs `command`."""
    return run(p.program, lambda: command(p.parse_args(arguments)), memory)


def run(program: str, command: Callable[[], int], memory: str = SMALLER) -> int:
    """Runs a command and returns its exit status; an exception that ends it becomes one line on
    stderr, which begins with the name `program`.

    memory: the advice to print if the command runs out of memory
    """
    try:
        return command()
    except ValueError as error:
        return fail(program, error, 2)
    except BrokenPipeError:  # the reader of stdout has gone (`| head`)
        return 1
    except OSError as error:
        return fail(program, f"cannot write {error.filename or 'output'}: {error.strerror}", 1)
    except MemoryError as error:
        return fail(program, f"out of memory: {error}; {memory}", 2)
    except KeyboardInterrupt:
        return fail(program, "interrupted", 130)
    finally:
        settle()


def fail(program: str, message: object, status: int) -> int:
    """Prints an error as one line on stderr; returns `status`."""
    line = " ".join(shown(word, MOST_OF_WORD) for word in str(message).split())
    print(f"{program}:", shown(line, MOST_CHARACTERS), file=sys.stderr)
    return status


def settle() -> None:
    """Flushes stdout at the end of a command. If the reader of a pipe has closed it, the rest of
    the output is discarded, so that the interpreter reports no error at exit."""
    try:
        if sys.stdout:
            sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def picture_problem(path: str | os.PathLike[str]) -> str:
    """Returns why matplotlib cannot write a picture to this file; "" if it can."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        return "matplotlib is not installed: pip install 'nnmpi[plot]'"
    kinds = Figure().canvas.get_supported_filetypes()
    if Path(path).suffix[1:].lower() in kinds:
        return ""
    return f"matplotlib cannot write {shown(path)}: use .png, .svg or .pdf"
