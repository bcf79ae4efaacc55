"""A simulation's network: its options, valid ranges, and text."""

import argparse
import re
from collections.abc import Callable
from typing import Any, TypeAlias

from nnmpi.addons.simulator import topologies
from nnmpi.collectives.price import NEAR, Link, Network
from nnmpi.collectives.topology import Topology

Record: TypeAlias = dict[str, Any]
"""The result of a simulation, as a JSON object; the text of a command is made from it."""

MAX_RANKS = 10_000_000
MAX_VALUE = 1e30  # of bytes and of seconds, so that no product of them overflows

NUMBER = r"\d{1,7}"
TOPOLOGIES: dict[str, tuple[re.Pattern[str], Callable[..., Topology]]] = {
    "fat-tree:K[:OVERSUBSCRIPTION]": (
        re.compile(rf"fat-tree:({NUMBER})(?::({NUMBER}(?:\.\d+)?))?"),
        lambda k, factor: topologies.fat_tree(int(k), float(factor or 1)),
    ),
    "torus:8x8[x8]": (
        re.compile(rf"torus:({NUMBER}(?:x{NUMBER})*)"),
        lambda sides: topologies.torus(tuple(map(int, sides.split("x")))),
    ),
    "dragonfly:A,G,H": (
        re.compile(rf"dragonfly:({NUMBER}),({NUMBER}),({NUMBER})"),
        lambda *sizes: topologies.dragonfly(*map(int, sizes)),
    ),
    "rails:8": (re.compile(rf"rails:({NUMBER})"), lambda q: topologies.rails(int(q), MAX_RANKS)),
}
"""The topologies, by the form of their text: its pattern, and the value of the pattern's groups."""


def add_number(
    group: Any, flag: str, default: str, text: str, kind: type = float, metavar: str | None = None
) -> None:
    """Adds a number's option, whose help is `text` and the default."""
    text = f"{text} (default {default})"
    group.add_argument(flag, type=kind, default=default, metavar=metavar, help=text)


def add_options(p: argparse.ArgumentParser, with_topologies: bool = False) -> None:
    """Adds the options of a network between ranks as a group, with --network if
    `with_topologies`."""
    network = p.add_argument_group("network")
    p.set_defaults(network=None)
    if with_topologies:
        forms = " | ".join(TOPOLOGIES)
        network.add_argument("--network", metavar="TOPOLOGY", help=f"what joins the ranks: {forms}")
    add_number(network, "--alpha", "5e-6", "seconds per message; Ethernet takes about 2e-5")
    add_number(
        network, "--beta", "1e-10", "seconds per byte: 8e-9 / (Gbit/s), so 8e-10 at 10 Gbit/s"
    )
    add_number(network, "--gamma", "0", "seconds to add a byte")
    network.add_argument(
        "--per-node", type=int, metavar="Q", help="ranks in a node, for a network of two levels"
    )
    for name, near in NEAR._asdict().items():
        network.add_argument(
            f"--inner-{name}",
            type=float,
            metavar=name.upper(),
            help=f"{name} inside a node (default with --per-node {near:g}: shared memory)",
        )


def network(options: argparse.Namespace) -> Network:
    """Returns the options' network: one level, two with --per-node, or --network."""
    alpha, beta, gamma = options.alpha, options.beta, options.gamma
    for name, value in (("alpha", alpha), ("beta", beta), ("gamma", gamma)):
        check_number(name, value)
    per_node, *inner = options.per_node, options.inner_alpha, options.inner_beta
    shape = named_topology(options.network) if options.network is not None else None
    if shape is not None:
        if per_node is not None:
            reason = "says which ranks form a node" if shape.node else "has no nodes"
            raise ValueError(f"{shape.text} {reason}; leave out --per-node")
        if not shape.node:
            if inner != [None, None]:
                raise ValueError(
                    f"{shape.text} has no nodes; leave out --inner-alpha, --inner-beta"
                )
            return Network(Link(alpha, beta), gamma, topology=shape)
        per_node = shape.node
        inner = [
            far if near is None else near for near, far in zip(inner, (alpha, beta), strict=True)
        ]
    if per_node is None and inner == [None, None]:
        return Network(Link(alpha, beta), gamma)
    if per_node is None:
        raise ValueError("--inner-alpha and --inner-beta are of links in a node: give --per-node")
    inside = Link(
        *(typical if given is None else given for given, typical in zip(inner, NEAR, strict=True))
    )
    check_number("inner-alpha", inside.alpha)
    check_number("inner-beta", inside.beta)
    check_count("per-node", per_node)
    return Network(Link(alpha, beta), gamma, inside, per_node, topology=shape)


def named_topology(text: str) -> Topology:
    """The topology that a text such as torus:8x8 names; raises ValueError if it names none."""
    for pattern, make in TOPOLOGIES.values():
        if parts := pattern.fullmatch(text):
            named = make(*parts.groups())
            check_count(f"ranks of {text}", named.ranks)
            return named
    raise ValueError(f"network {text!r} is none of {', '.join(TOPOLOGIES)}")


def check_number(name: str, value: float, least: float = 0) -> None:
    """Raises ValueError unless a number of the command line is from `least` to MAX_VALUE."""
    if not least <= value <= MAX_VALUE:
        raise ValueError(f"{name} {value} must be a number from {least:g} to {MAX_VALUE:g}")


def check_count(name: str, value: int, most: int = MAX_RANKS) -> None:
    """Raises ValueError unless an integer of the command line is from 1 to `most`."""
    if not 1 <= value <= most:
        raise ValueError(f"{name} {value} must be from 1 to {most}")


def as_text(r: Record) -> str:
    """Returns the parameters of a network, taken from a record, as text for the user."""
    text = f"alpha {r['alpha']:g} s, beta {r['beta']:g} s/B, gamma {r['gamma']:g} s/B"
    if r["network"] is not None:
        text += f"; {r['network']}"
    if r["per_node"] is None:
        return text
    inner = f"alpha {r['inner_alpha']:g} s, beta {r['inner_beta']:g} s/B"
    return f"{text}; in nodes of {r['per_node']:,}: {inner}"


def record(n: Network) -> Record:
    """Returns the parameters of a network as entries of a record (a dict for JSON)."""
    return {
        "alpha": n.link.alpha,
        "beta": n.link.beta,
        "gamma": n.gamma,
        "network": n.topology.text if n.topology else None,
        "per_node": n.per_node if n.inner else None,
        "inner_alpha": n.inner.alpha if n.inner else None,
        "inner_beta": n.inner.beta if n.inner else None,
    }
