"""The command `python -m nnmpi.simulate`: prices and draws plans on paper, without MPI.

0: it was simulated. 1: nobody took the output. 2: unusable arguments. 130: stopped by Ctrl-C.
"""

import argparse
import json
import re
from collections.abc import Sequence

from nnmpi import cli
from nnmpi.collectives.price import Network
from nnmpi.collectives.verify import PlanError
from nnmpi.sim import collective, show
from nnmpi.sim.collective import OPERATIONS, Outcome
from nnmpi.sim.draw import LEGEND, draw

UNITS: dict[str, int] = {"": 1, "b": 1} | {
    f"{prefix}{i}b": base**power
    for power, prefix in enumerate("kmgt", 1)
    for i, base in (("", 1000), ("i", 1024))
}


def fail(message: object, status: int) -> int:
    """Says why, and gives the exit status."""
    return cli.fail("nnmpi.simulate", message, status)


def size(text: str) -> float:
    """A number of bytes: 100e6, 64KB, 8MB or 1GiB."""
    parts = re.fullmatch(r"(.*?)\s*([a-zA-Z]*)", text, re.S)
    if parts and parts[2].lower() in UNITS:
        return float(parts[1]) * UNITS[parts[2].lower()]
    return float(text)


def parser() -> argparse.ArgumentParser:
    """One subcommand for each kind of plan."""
    p = cli.Parser(
        prog="python -m nnmpi.simulate",
        description="Price and draw plans on paper, without MPI.",
        allow_abbrev=False,
    )
    kinds = p.add_subparsers(title="plans", dest="kind", required=True, metavar="KIND")
    c = kinds.add_parser("collective", help="all-reduce and its relatives", allow_abbrev=False)
    what = c.add_argument_group("what")
    what.add_argument("--operation", default="all-reduce", choices=OPERATIONS)
    what.add_argument(
        "--algorithm", default="all", metavar="NAME", help="or all, side by side (default)"
    )
    what.add_argument("--ranks", type=int, required=True, metavar="P")
    what.add_argument(
        "--bytes", type=size, required=True, metavar="M", help="in one buffer: 100e6, 64KB, 1GiB"
    )
    on = c.add_argument_group("the network")
    on.add_argument("--alpha", type=float, default=5e-6, help="seconds a message (default 5e-6)")
    on.add_argument("--beta", type=float, default=1e-10, help="seconds a byte (default 1e-10)")
    on.add_argument("--gamma", type=float, default=0.0, help="seconds to add a byte (default 0)")
    on.add_argument("--per-node", type=int, metavar="Q", help="ranks in a node, for two levels")
    on.add_argument("--inner-alpha", type=float, metavar="ALPHA", help="inside a node")
    on.add_argument("--inner-beta", type=float, metavar="BETA", help="inside a node")
    output = c.add_argument_group("output")
    output.add_argument("--draw", action="store_true", help="show the rounds of one algorithm")
    output.add_argument("--json", action="store_true", help="print JSON")
    c.set_defaults(answer=answer_collective)
    return p


def answer_collective(given: argparse.Namespace) -> str:
    """What `collective` prints."""
    if given.draw and given.json:
        raise ValueError("--draw is for people and --json for programs; leave out one of them")
    names = collective.names(given.operation, given.algorithm)
    if given.draw and given.algorithm == "all":
        raise ValueError(f"--draw shows one algorithm; add --algorithm {'|'.join(names)}")
    network = collective.network(
        given.alpha, given.beta, given.gamma, given.per_node, given.inner_alpha, given.inner_beta
    )
    drawn = drawing(given, network) if given.draw else ""
    outcomes = [
        collective.simulate(given.operation, name, given.ranks, given.bytes, network)
        for name in names
    ]
    if given.json:
        return in_json(outcomes, given.algorithm == "all")
    return show.table(outcomes) if given.algorithm == "all" else show.page(outcomes[0]) + drawn


def drawing(given: argparse.Namespace, network: Network) -> str:
    """The rounds of the one algorithm that was asked for."""
    plan = collective.plans(given.operation, network)[given.algorithm]
    try:
        picture = draw(plan, given.ranks, OPERATIONS[given.operation].claim)
    except PlanError as error:
        raise ValueError(
            f"{given.algorithm} can be priced, not drawn: it does not work in place "
            f"({error}); leave out --draw"
        ) from None
    except ValueError as error:
        raise ValueError(f"{error}, or leave out --draw") from None
    return f"\n\n{picture}\n\n{LEGEND}"


def in_json(outcomes: list[Outcome], several: bool) -> str:
    """A list of objects, or the one object."""
    records = [show.record(o) for o in outcomes]
    return json.dumps(records if several else records[0], indent=2)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit status."""
    try:
        given = parser().parse_args(arguments)
        text = given.answer(given)
    except ValueError as error:
        return fail(error, 2)
    except MemoryError as error:
        return fail(f"out of memory: {error}; take fewer ranks", 2)
    except KeyboardInterrupt:
        return fail("interrupted", 130)
    return tell(text)


def tell(text: str) -> int:
    """Print, all at once; a reader that has gone (`| head`) needs no message."""
    try:
        print(text, flush=True)
    except BrokenPipeError:
        return 1
    except OSError as error:
        return fail(f"cannot write output: {error.strerror}", 1)
    finally:
        cli.settle()
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
