"""The options of a network, which several subcommands of `python -m nnmpi.simulate` have."""

import argparse

from nnmpi.collectives.price import Network
from nnmpi.sim import collective


def add_options(p: argparse.ArgumentParser) -> None:
    """Add the options, in a group of their own."""
    network = p.add_argument_group("network")
    network.add_argument(
        "--alpha", type=float, default=5e-6, help="seconds per message (default 5e-6)"
    )
    network.add_argument(
        "--beta", type=float, default=1e-10, help="seconds per byte (default 1e-10)"
    )
    network.add_argument(
        "--gamma", type=float, default=0.0, help="seconds to add a byte (default 0)"
    )
    network.add_argument(
        "--per-node", type=int, metavar="Q", help="ranks in a node, for a network of two levels"
    )
    network.add_argument("--inner-alpha", type=float, metavar="ALPHA", help="alpha inside a node")
    network.add_argument("--inner-beta", type=float, metavar="BETA", help="beta inside a node")


def network(options: argparse.Namespace) -> Network:
    """The network of the options; raises ValueError for numbers out of range."""
    return collective.network(
        options.alpha,
        options.beta,
        options.gamma,
        options.per_node,
        options.inner_alpha,
        options.inner_beta,
    )
