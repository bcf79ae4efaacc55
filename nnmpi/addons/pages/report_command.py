"""The command `python -m nnmpi.report`: writes an HTML page of runs, from their logs and traces.

Exit status: 0 written, 1 the file could not be written, 2 unusable arguments, 130 Ctrl-C.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path

from nnmpi.addons.pages.page import logs_of, read, write
from nnmpi.options import cli


def parser() -> cli.Parser:
    """The parser of the command line."""
    about = "Write a page of one or several runs, which browsers show without a network."
    p = cli.Parser("nnmpi.report", description=about)
    add_files(p)
    p.add_argument("--out", default="run.html", metavar="FILE", help="(default run.html)")
    return p


def add_files(p: argparse.ArgumentParser) -> None:
    """Adds the argument FILE ..., the logs and traces that the page shows."""
    text = "a file of --log, followed by --trace files of its last run"
    p.add_argument("files", nargs="+", metavar="FILE", help=text)


def command(given: argparse.Namespace) -> int:
    """Writes the HTML page that the command line asks for, and returns the exit status."""
    write(Path(given.out), logs_of({file: read(file) for file in given.files}))
    return 0


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command and returns its exit status."""
    return cli.main(parser(), command, arguments)
