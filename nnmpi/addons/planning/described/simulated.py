"""The option --machine of `nnmpi.simulate`: a described machine in place of --alpha and others."""

import argparse
from typing import Any

from nnmpi.addons.planning.described.description import network_named

NETWORK = "network", "alpha", "beta", "gamma", "per_node", "inner_alpha", "inner_beta"
PLACES = {
    "collective": ("the options of the network", NETWORK, "--ranks=2 --bytes=1"),
    "goodput": (
        *("--ranks-per-node", ("ranks_per_node",)),
        "--ranks=1 --mttf-node=1s --checkpoint=1s --restart=1s",
    ),
}
"""By subcommand: options that a machine determines, and options that are required."""


def add_machine(subcommand: str, p: argparse.ArgumentParser) -> None:
    """Adds --machine to the parser of a subcommand in PLACES, whose `run` then gets the machine's
    figures as the values of the options that they replace."""
    if subcommand not in PLACES:
        return
    in_words, names, required = PLACES[subcommand]
    p.add_argument(
        "--machine", metavar="NAME[:RANKS]|FILE",
        help="a described machine, such as a100-80g:8, or a file, in place of " + in_words,
    )  # fmt: skip
    plain, run = p.parse_args(required.split()), p.get_default("run")

    def with_machine(options: argparse.Namespace) -> Any:
        if options.machine is not None:
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
        return run(options)

    p.set_defaults(run=with_machine)
