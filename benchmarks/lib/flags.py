"""The argument parser of the benchmarks: output files, and one-line errors."""

import argparse
import os
from pathlib import Path
from typing import Any, NoReturn

from nnmpi.options import cli


class Parser(argparse.ArgumentParser):
    """Prints errors as one line; of several ranks that parse the flags, only one prints."""

    def __init__(self, doc: str | None, plotted: str, prints: bool = True) -> None:
        super().__init__(description=doc, formatter_class=argparse.RawTextHelpFormatter)
        self._prints = prints
        self.add_argument("--json", help="write one row per measurement to this file")
        self.add_argument("--plot", help=f"plot {plotted} to this file (.png, .svg, .pdf)")

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {message}\n" if self._prints else None)

    def print_help(self, file: Any = None) -> None:
        if self._prints:
            super().print_help(file)

    def check_outputs(self, a: argparse.Namespace) -> None:
        """Refuse files that could not be written, before anything is measured."""
        for path in filter(None, (a.json, a.plot)):
            if not os.access(Path(path).absolute().parent, os.W_OK) or Path(path).is_dir():
                self.error(f"{path} cannot be written")
        if a.plot and (problem := cli.picture_problem(a.plot)):
            self.error(problem)
