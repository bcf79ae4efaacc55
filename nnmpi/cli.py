"""Shared by the commands of nnmpi: flags, one-line errors, and a stdout that may be closed."""

import argparse
import os
import sys
from collections.abc import Collection
from difflib import get_close_matches
from pathlib import Path
from typing import Any, NoReturn

from nnmpi.config import kind_of, options
from nnmpi.quoting import shown

MOST, MOST_OF_WORD = 4000, 400  # characters of a line on stderr, and of a word in it


class Parser(argparse.ArgumentParser):
    """An ArgumentParser that raises ValueError instead of exiting."""

    def error(self, message: str) -> NoReturn:
        raise ValueError(message)

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """All arguments have to be known; a misspelt option gets the nearest one as a hint.

        A parser of a subcommand is asked for this method too, and knows its own options.
        """
        found, unknown = super().parse_known_args(args, namespace)
        if unknown:
            options = [word.partition("=")[0] for word in unknown if word.startswith("--")]
            known = self._option_string_actions
            near = [n for option in options for n in get_close_matches(option, known, 1, 0.7)]
            hint = f"; did you mean {' and '.join(near)}?" if near else ""
            self.error(f"unrecognized arguments: {' '.join(unknown)}{hint}")
        return found, unknown


def add_flags(p: argparse.ArgumentParser, groups: Collection[str] = ()) -> None:
    """Adds a flag for each option, by groups: of these groups, or of all."""
    made: dict[str, Any] = {}
    for o in options():
        m = o.metadata
        if groups and m["group"] not in groups:
            continue
        if m["group"] not in made:
            made[m["group"]] = p.add_argument_group(m["group"])
        flags = [f"--{n.replace('_', '-')}" for n in (o.name, m["alias"]) if n is not None]
        is_shown = o.default is not None and o.default is not False and "default" not in m["help"]
        text = m["help"] + (f" (default {o.default})" if is_shown else "")
        text = text.replace("%", "%%")
        if kind_of(o) is bool:
            action = argparse.BooleanOptionalAction
            made[m["group"]].add_argument(*flags, action=action, help=text)
            continue
        choices = None if m["custom"] else m["choices"] or None
        listed = choices and not any("," in str(choice) for choice in choices)
        metavar = None if listed else o.name.split("_")[-1].upper()
        made[m["group"]].add_argument(
            *flags, type=kind_of(o), choices=choices, metavar=metavar, help=text
        )


def fail(program: str, message: object, status: int) -> int:
    """Print the message as one line on stderr, with what users wrote cut; returns the status."""
    line = " ".join(shown(word, MOST_OF_WORD) for word in str(message).split())
    print(f"{program}:", shown(line, MOST), file=sys.stderr)
    return status


def settle() -> None:
    """Discard output that a closed stdout refuses, else the interpreter reports it at exit."""
    try:
        if sys.stdout:
            sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def picture_problem(path: str | os.PathLike[str]) -> str:
    """The reason why matplotlib cannot write a picture to this file; empty if it can."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        return "matplotlib is not installed: pip install 'nnmpi[plot]'"
    kinds = Figure().canvas.get_supported_filetypes()
    if Path(path).suffix[1:].lower() in kinds:
        return ""
    return f"matplotlib cannot write {path}: use .png, .svg or .pdf"
