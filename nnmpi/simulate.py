"""The command `python -m nnmpi.simulate`: prices and draws plans, without MPI.

Exit status: 0 success, 1 the output could not be written, 2 unusable arguments, 130 Ctrl-C.
"""

import argparse
import json
import re
from collections.abc import Sequence

from nnmpi import cli
from nnmpi.collectives.price import Network
from nnmpi.collectives.verify import PlanError
from nnmpi.sim import (
    collective,
    gemm_command,
    network_options,
    pipeline_command,
    show,
    trace_command,
)
from nnmpi.sim.collective import OPERATIONS, Outcome
from nnmpi.sim.draw import LEGEND, draw

UNITS: dict[str, int] = {"": 1, "b": 1} | {
    f"{prefix}{i}b": base**power
    for power, prefix in enumerate("kmgt", 1)
    for i, base in (("", 1000), ("i", 1024))
}


def fail(message: object, status: int) -> int:
    """Print the reason on stderr and return the exit status."""
    return cli.fail("nnmpi.simulate", message, status)


def size(text: str) -> float:
    """Parse a number of bytes: 100e6, 64KB, 8MB or 1GiB."""
    parts = re.fullmatch(r"(.*?)\s*([a-zA-Z]*)", text, re.S)
    if parts and parts[2].lower() in UNITS:
        return float(parts[1]) * UNITS[parts[2].lower()]
    return float(text)


def parser() -> argparse.ArgumentParser:
    """The command line: one subcommand per kind of plan."""
    p = cli.Parser(
        prog="python -m nnmpi.simulate",
        description="Price and draw plans, without MPI.",
        allow_abbrev=False,
    )
    kinds = p.add_subparsers(title="plans", dest="kind", required=True, metavar="KIND")
    c = kinds.add_parser("collective", help="all-reduce and its relatives", allow_abbrev=False)
    plan = c.add_argument_group("plan")
    plan.add_argument("--operation", default="all-reduce", choices=OPERATIONS)
    plan.add_argument(
        "--algorithm", default="all", metavar="NAME", help="or all, side by side (default)"
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
    output.add_argument("--json", action="store_true", help="print JSON")
    c.set_defaults(run=run_collective)
    pipeline = kinds.add_parser("pipeline", help="schedules of a pipeline", allow_abbrev=False)
    pipeline_command.add_options(pipeline)
    pipeline.set_defaults(run=pipeline_command.run)
    product = kinds.add_parser("gemm", help="matrix products on ranks", allow_abbrev=False)
    gemm_command.add_options(product)
    product.set_defaults(run=gemm_command.run)
    trace = kinds.add_parser("trace", help="steps of a real run", allow_abbrev=False)
    trace_command.add_options(trace)
    trace.set_defaults(run=trace_command.run)
    return p


def run_collective(options: argparse.Namespace) -> str:
    """The output of `collective`."""
    if options.draw and options.json:
        raise ValueError("--draw and --json exclude each other; leave out one of them")
    names = collective.names(options.operation, options.algorithm)
    if options.draw and options.algorithm == "all":
        raise ValueError(f"--draw shows one algorithm; add --algorithm {'|'.join(names)}")
    network = network_options.network(options)
    drawn = drawing(options, network) if options.draw else ""
    outcomes = [
        collective.simulate(options.operation, name, options.ranks, options.bytes, network)
        for name in names
    ]
    if options.json:
        return in_json(outcomes, options.algorithm == "all")
    return show.table(outcomes) if options.algorithm == "all" else show.report(outcomes[0]) + drawn


def drawing(options: argparse.Namespace, network: Network) -> str:
    """The rounds of the selected algorithm."""
    plan = collective.plans(options.operation, network)[options.algorithm]
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


def in_json(outcomes: list[Outcome], several: bool) -> str:
    """One object, or a list of them."""
    records = [show.record(o) for o in outcomes]
    return json.dumps(records if several else records[0], indent=2)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit status."""
    try:
        options = parser().parse_args(arguments)
        text = options.run(options)
    except ValueError as error:
        return fail(error, 2)
    except OSError as error:
        return fail(f"cannot write {error.filename}: {error.strerror}", 1)
    except MemoryError as error:
        return fail(f"out of memory: {error}; take fewer ranks", 2)
    except KeyboardInterrupt:
        return fail("interrupted", 130)
    return print_output(text)


def print_output(text: str) -> int:
    """Print the text; a reader that closed the pipe early (`| head`) gets no message."""
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
