"""The subcommand `collective` of `python -m nnmpi.simulate`: one plan, all of them, or a sweep."""

import argparse
import json
import re
from pathlib import Path

from nnmpi.collectives.price import Network
from nnmpi.collectives.verify import PlanError
from nnmpi.sim import collective, show, sweep
from nnmpi.sim.collective import OPERATIONS
from nnmpi.sim.commands import network_options
from nnmpi.sim.draw import LEGEND, draw

HELP = "all-reduce and its relatives"

UNITS: dict[str, int] = {"": 1, "b": 1} | {
    f"{prefix}{i}b": base**power
    for power, prefix in enumerate("kmgt", 1)
    for i, base in (("", 1000), ("i", 1024))
}


def size(text: str) -> float:
    """Parse a number of bytes: 100e6, 64KB, 8MB or 1GiB."""
    parts = re.fullmatch(r"(.*?)\s*([a-zA-Z]*)", text, re.S)
    number, unit = parts.groups() if parts and parts[2].lower() in UNITS else (text, "")
    try:
        return float(number) * UNITS[unit.lower()]
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"{text!r} is not a size: write it as 100e6, 64KB or 1GiB"
        ) from None


def add_options(c: argparse.ArgumentParser) -> None:
    """The options of the subcommand."""
    plan = c.add_argument_group("plan")
    plan.add_argument("--operation", default="all-reduce", choices=OPERATIONS)
    plan.add_argument(
        "--algorithm",
        default="all",
        metavar="NAME[,NAME]",
        help="package.module:NAME of yours included; default: all, side by side",
    )
    plan.add_argument("--ranks", type=int, required=True, metavar="P")
    plan.add_argument(
        "--bytes",
        type=size,
        required=True,
        metavar="M",
        help="size of the buffer: 100e6, 64KB, 1GiB",
    )
    network_options.add_options(c)
    output = c.add_argument_group("output")
    output.add_argument("--draw", action="store_true", help="show the rounds of one algorithm")
    output.add_argument(
        "--sweep",
        choices=sweep.BY,
        help="several sizes up to --bytes, or numbers of ranks up to --ranks",
    )
    output.add_argument("--plot", type=Path, metavar="FILE", help="a picture of a sweep")
    output.add_argument("--json", action="store_true", help="print JSON")


def run(options: argparse.Namespace) -> str:
    """The output of `collective`."""
    if options.draw and options.json:
        raise ValueError("--draw and --json exclude each other; leave out one of them")
    names = collective.names(options.operation, options.algorithm)
    if options.draw and len(names) > 1:
        raise ValueError(f"--draw shows one algorithm; add --algorithm {'|'.join(names)}")
    network = network_options.network(options)
    if options.plot and not options.sweep:
        raise ValueError("--plot shows a sweep; add --sweep bytes or --sweep ranks")
    if options.sweep:
        return _swept(options, names, network)
    several = len(names) > 1 or options.algorithm == "all"
    drawn = _drawing(options, network) if options.draw else ""
    outcomes = [
        collective.simulate(options.operation, name, options.ranks, options.bytes, network)
        for name in names
    ]
    if options.json:
        records = [show.record(o) for o in outcomes]
        return json.dumps(records if several else records[0], indent=2)
    return show.table(outcomes) if several else show.report(outcomes[0]) + drawn


def _swept(options: argparse.Namespace, names: list[str], network: Network) -> str:
    """The output of a sweep."""
    if options.draw:
        raise ValueError("--draw shows one number of ranks; leave out --sweep")
    if options.plot:
        sweep.check_picture(options.plot)
    found = sweep.sweep(
        options.sweep, options.operation, names, options.ranks, options.bytes, network
    )
    if options.plot:
        sweep.plot(found, options.plot)
    return json.dumps(sweep.records(found), indent=2) if options.json else sweep.table(found)


def _drawing(options: argparse.Namespace, network: Network) -> str:
    """The rounds of the selected algorithm."""
    plan = collective.plan(options.operation, options.algorithm, network)
    try:
        picture = draw(plan, options.ranks, OPERATIONS[options.operation].claim)
    except PlanError as error:
        raise ValueError(
            f"{options.algorithm} can be priced but not drawn, since it does not work in place "
            f"({error}); leave out --draw"
        ) from None
    except ValueError as error:
        raise ValueError(f"{error}, or leave out --draw") from None
    return f"\n\n{picture}\n\n{LEGEND}"
