"""The command `python -m nnmpi.simulate`: predicts the cost of plans and layouts and draws them,
without MPI.

Exit status: 0 success, 1 the output could not be written, 2 unusable arguments, 130 Ctrl-C.
"""

import argparse
import json
from collections.abc import Sequence

from nnmpi.options import cli
from nnmpi.planning.described import network_named
from nnmpi.run.planning import dry_run
from nnmpi.sim.commands import collective, gemm, goodput, pipeline, sync, trace

TAKEN = {collective: "the options of the network", goodput: "--ranks-per-node"}
"""The options that a machine takes the place of, by subcommand."""

SMALLER = "take fewer ranks, a smaller model, or samples with a shorter --context"
"""The remedy where memory is too small."""

COMMANDS = {
    "collective": collective,
    "pipeline": pipeline,
    "gemm": gemm,
    "layout": dry_run,
    "sync": sync,
    "goodput": goodput,
    "trace": trace,
}


def parser() -> cli.Parser:
    """The parser of the command line; each subcommand sets `run` to a function that returns text or
    JSON values."""
    p = cli.Parser("nnmpi.simulate", description="Predict and draw the cost of plans, without MPI.")
    kinds = p.add_subparsers(title="plans", dest="kind", required=True, metavar="KIND")
    for name, command in COMMANDS.items():
        sub = kinds.add_parser(name, help=command.HELP)
        command.add_options(sub)
        if command in TAKEN:
            sub.add_argument(
                "--machine", metavar="NAME[:RANKS]|FILE",
                help="a described machine, such as a100-80g:8, or a file, in place of "
                + TAKEN[command],
            )  # fmt: skip
        sub.set_defaults(run=command.run)
    return p


NETWORK = "network", "alpha", "beta", "gamma", "per_node", "inner_alpha", "inner_beta"
"""The options of a network, which a machine takes the place of."""


def _take_machine(options: argparse.Namespace) -> None:
    """Sets the options that --machine takes the place of; raises ValueError if one is given too."""
    names: Sequence[str] = ["ranks_per_node"]
    plain = argparse.Namespace(ranks_per_node=None)
    if options.run is collective.run:
        names, plain = NETWORK, parser().parse_args(["collective", "--ranks=2", "--bytes=1"])
    for name in names:
        if getattr(options, name) != getattr(plain, name):
            flag = f"--{name.replace('_', '-')}"
            raise ValueError(f"--machine says what {flag} would: give one of them")
    network = network_named(options.machine)
    assert network.inner is not None
    options.ranks_per_node = min(network.per_node, options.ranks)
    options.alpha, options.beta = network.link
    options.inner_alpha, options.inner_beta = network.inner
    options.gamma, options.per_node = network.gamma, network.per_node


def command(options: argparse.Namespace) -> int:
    """Prints the output of a subcommand."""
    if getattr(options, "machine", None) is not None and options.kind != "layout":
        _take_machine(options)
    output = options.run(options)
    print(output if isinstance(output, str) else json.dumps(output, indent=2), flush=True)
    return 0


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command and returns its exit status."""
    return cli.main(parser(), command, arguments, SMALLER)


if __name__ == "__main__":
    raise SystemExit(main())
