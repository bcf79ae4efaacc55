"""The network of a simulation: its options, their valid ranges, and its text."""

import argparse
from typing import Any, TypeAlias

from nnmpi.collectives.price import Link, Network

Record: TypeAlias = dict[str, Any]
"""The result of a simulation, as a JSON object; the text of a command is made from it."""

MAX_RANKS = 10_000_000
MAX_VALUE = 1e30  # of bytes and of seconds, so that no product of them overflows


def add_number(
    group: Any, flag: str, default: str, text: str, kind: type = float, metavar: str | None = None
) -> None:
    """Adds a numeric option whose help text names its default."""
    text = f"{text} (default {default})"
    group.add_argument(flag, type=kind, default=default, metavar=metavar, help=text)


def add_options(p: argparse.ArgumentParser) -> None:
    """Adds the options of a network, in a group of their own."""
    network = p.add_argument_group("network")
    add_number(network, "--alpha", "5e-6", "seconds per message")
    add_number(network, "--beta", "1e-10", "seconds per byte")
    add_number(network, "--gamma", "0", "seconds to add a byte")
    network.add_argument(
        "--per-node", type=int, metavar="Q", help="ranks in a node, for a network of two levels"
    )
    network.add_argument("--inner-alpha", type=float, metavar="ALPHA", help="alpha inside a node")
    network.add_argument("--inner-beta", type=float, metavar="BETA", help="beta inside a node")


def network(options: argparse.Namespace) -> Network:
    """The network of the options: one level, or two if the link inside a node is given."""
    alpha, beta, gamma = options.alpha, options.beta, options.gamma
    for name, value in (("alpha", alpha), ("beta", beta), ("gamma", gamma)):
        check_number(name, value)
    per_node, *inner = options.per_node, options.inner_alpha, options.inner_beta
    if per_node is None and inner == [None, None]:
        return Network(Link(alpha, beta), gamma)
    if None in (per_node, *inner):
        raise ValueError(
            "a link inside a node needs --per-node, --inner-alpha and --inner-beta, got "
            f"{per_node}, {inner[0]} and {inner[1]}: give all three, or none of them"
        )
    check_number("inner-alpha", inner[0])
    check_number("inner-beta", inner[1])
    check_count("per-node", per_node)
    return Network(Link(alpha, beta), gamma, Link(*inner), per_node)


def check_number(name: str, value: float, least: float = 0) -> None:
    """Raises ValueError if a number of the command line is out of range."""
    if not least <= value <= MAX_VALUE:
        raise ValueError(f"{name} {value} must be a number from {least:g} to {MAX_VALUE:g}")


def check_count(name: str, value: int, most: int = MAX_RANKS) -> None:
    """Raises ValueError if an integer of the command line is out of range."""
    if not 1 <= value <= most:
        raise ValueError(f"{name} {value} must be from 1 to {most}")


def as_text(r: Record) -> str:
    """Formats the parameters of a network, taken from a record."""
    text = f"alpha {r['alpha']:g} s, beta {r['beta']:g} s/B, gamma {r['gamma']:g} s/B"
    if r["per_node"] is None:
        return text
    inner = f"alpha {r['inner_alpha']:g} s, beta {r['inner_beta']:g} s/B"
    return f"{text}; in nodes of {r['per_node']:,}: {inner}"


def record(n: Network) -> Record:
    """The parameters of a network as entries of a record."""
    return {
        "alpha": n.link.alpha,
        "beta": n.link.beta,
        "gamma": n.gamma,
        "per_node": n.per_node if n.inner else None,
        "inner_alpha": n.inner.alpha if n.inner else None,
        "inner_beta": n.inner.beta if n.inner else None,
    }
