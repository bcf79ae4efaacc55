"""What the flags of benchmarks have in common: where results go, and one line for what is wrong."""

import argparse
import importlib.util
import os
from pathlib import Path
from typing import Any, NoReturn


class Parser(argparse.ArgumentParser):
    """Says what is wrong in one line; of several ranks that read the flags, the first does."""

    def __init__(self, doc: str | None, drawn: str, speaks: bool = True) -> None:
        super().__init__(description=doc, formatter_class=argparse.RawTextHelpFormatter)
        self._speaks = speaks
        self.add_argument("--json", help="write one row per measurement")
        self.add_argument("--plot", help=f"draw {drawn} (.png, .svg, .pdf)")

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {message}\n" if self._speaks else None)

    def print_help(self, file: Any = None) -> None:
        if self._speaks:
            super().print_help(file)

    def check_outputs(self, a: argparse.Namespace) -> None:
        """Refuses what could not be written or drawn, before anything is measured."""
        for path in filter(None, (a.json, a.plot)):
            if not os.access(Path(path).absolute().parent, os.W_OK) or Path(path).is_dir():
                self.error(f"{path} cannot be written")
        if a.plot and (trouble := _trouble(a.plot)):
            self.error(trouble)


def _trouble(path: str) -> str | None:
    """Why no picture can be drawn into such a file, if so."""
    if importlib.util.find_spec("matplotlib") is None:
        return "matplotlib is not installed (pip install 'nnmpi[plot]'): leave out --plot"
    from matplotlib.figure import Figure

    kinds = Figure().canvas.get_supported_filetypes()
    if Path(path).suffix[1:].lower() in kinds:
        return None
    return f"{path} is not a picture that matplotlib writes: end it in .png, .svg or .pdf"
