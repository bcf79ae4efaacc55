"""The command `python -m nnmpi.plot`: loss and accuracy of runs, drawn from their logs.

Exit status: 0 written, 1 the file could not be written, 2 unusable arguments, 130 Ctrl-C.
"""

import argparse
from collections.abc import Sequence

from nnmpi.options import cli
from nnmpi.run.report.plot import AXES, plot


def parser() -> argparse.ArgumentParser:
    """The options of the command."""
    p = cli.Parser(
        prog=cli.called("nnmpi.plot"),
        description="Draw loss and accuracy of one or several runs, from their logs.",
        allow_abbrev=False,
    )
    p.add_argument("logs", nargs="+", metavar="LOG", help="a file that --log has written")
    p.add_argument("--x", default="epochs", choices=[*AXES], help="(default epochs)")
    out = ".png, .svg or .pdf (default training.png)"
    p.add_argument("-o", "--out", default="training.png", metavar="FILE", help=out)
    more = "also learning rate, norm of the gradient, and samples or tokens a second"
    p.add_argument("--all", action="store_true", help=more)
    return p


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit status."""

    def command() -> int:
        given = parser().parse_args(arguments)
        plot(given.logs, given.x, given.out, given.all)
        return 0

    return cli.run("nnmpi.plot", command)
