"""The command `python -m nnmpi.simulate`: predicts the cost of plans, and draws them, without MPI.

Exit status: 0 success, 1 the output could not be written, 2 unusable arguments, 130 Ctrl-C.
"""

import argparse
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from nnmpi.addons import Table
from nnmpi.addons.simulator.commands import collective, gemm, goodput, pipeline, sync, trace
from nnmpi.options import cli


class MoreSimulations(NamedTuple):
    """An add-on's additions to `nnmpi simulate`.

    commands  subcommands by name: modules with HELP, add_options and run
    options   by name, of (subcommand, its parser): adds the option, if the subcommand has it
    """

    commands: Mapping[str, Any]
    options: Mapping[str, Callable[[str, argparse.ArgumentParser], None]]


SIMULATIONS: Table[MoreSimulations] = Table("simulations")
"""By an add-on's name: its additions to `nnmpi simulate`."""

SMALLER = "take fewer ranks, a smaller model, or samples with a shorter --context"
"""The advice in the message for a lack of memory."""


def parser() -> cli.Parser:
    """The parser; each subcommand sets `run`, which returns text or JSON values."""
    p = cli.Parser("nnmpi.simulate", description="Predict and draw the cost of plans, without MPI.")
    kinds = p.add_subparsers(title="plans", dest="kind", required=True, metavar="KIND")
    more = [*SIMULATIONS.rows()]
    for name, command in {
        "collective": collective,
        "pipeline": pipeline,
        "gemm": gemm,
        **{name: command for row in more for name, command in row.commands.items()},
        "sync": sync,
        "goodput": goodput,
        "trace": trace,
    }.items():
        sub = kinds.add_parser(name, help=command.HELP)
        command.add_options(sub)
        sub.set_defaults(run=command.run)
        for add_option in (add for row in more for add in row.options.values()):
            add_option(name, sub)
    return p


def command(options: argparse.Namespace) -> int:
    """Prints the output of a subcommand, text or JSON, and returns the exit status."""
    output = options.run(options)
    print(output if isinstance(output, str) else json.dumps(output, indent=2), flush=True)
    return 0


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command and returns its exit status."""
    return cli.main(parser(), command, arguments, SMALLER)
