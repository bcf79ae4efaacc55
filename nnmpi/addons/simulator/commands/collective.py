"""`python -m nnmpi.simulate collective`: costs, also over sizes or ranks."""

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any

from nnmpi.addons.simulator import collective, sweep
from nnmpi.addons.simulator import network as net
from nnmpi.addons.simulator.collective import OPERATIONS
from nnmpi.addons.simulator.drawing.rounds import LEGEND, as_svg, draw
from nnmpi.addons.simulator.network import Record
from nnmpi.collectives import verify
from nnmpi.collectives.price import Network
from nnmpi.collectives.step import Algorithm, PlanError
from nnmpi.options import cli, tables, user_code, value_forms
from nnmpi.options.amounts import amount, duration, plural

HELP = "all-reduce and its relatives"

ROUNDING = 1e-12  # relative to the time: smaller differences are not shown


def add_options(c: argparse.ArgumentParser) -> None:
    """Adds the options of the subcommand `collective`."""
    plan = c.add_argument_group("plan")
    plan.add_argument("--operation", default="all-reduce", choices=OPERATIONS)
    plan.add_argument(
        "--algorithm",
        default="all",
        metavar="NAME[,NAME]",
        help="names of algorithms or package.module:NAME; default: all, side by side",
    )
    plan.add_argument("--ranks", type=int, required=True, metavar="P")
    plan.add_argument(
        "--bytes",
        type=cli.argument(value_forms.size),
        required=True,
        metavar="M",
        help="size of the buffer: 100e6, 64KB, 1GiB",
    )
    net.add_options(c, with_topologies=True)
    output = c.add_argument_group("output")
    output.add_argument("--draw", action="store_true", help="draw the rounds as text")
    output.add_argument("--svg", type=Path, metavar="FILE", help="draw the rounds to an SVG file")
    output.add_argument(
        "--sweep", choices=sweep.BY, help="sizes up to --bytes, or numbers of ranks up to --ranks"
    )
    output.add_argument("--plot", type=Path, metavar="FILE", help="plot the sweep")
    output.add_argument("--json", action="store_true", help="print JSON")


def run(options: argparse.Namespace) -> Any:
    """Returns the output of the subcommand `collective`, as text or as JSON records."""
    if options.draw and options.json:
        raise ValueError("--draw and --json cannot be combined; leave out one of them")
    names = collective.names(options.operation, options.algorithm)
    shows = "--draw" if options.draw else "--svg" if options.svg else ""
    network = net.network(options)
    if options.plot and not options.sweep:
        raise ValueError("--plot shows a sweep; add --sweep bytes or --sweep ranks")
    if options.sweep:
        if shows:
            raise ValueError(f"{shows} draws the rounds of one case: leave it or --sweep out")
        return _swept(options, names, network)
    several = len(names) > 1 or options.algorithm == "all"
    drawn = _drawn(options, names, network, shows) if shows else {}
    if options.svg:
        plans = {title: plan for title, (plan, _) in drawn.items()}
        claim = OPERATIONS[options.operation].collective.claim
        options.svg.write_text(as_svg(plans, options.ranks, claim), encoding="utf-8")
    records = [
        collective.simulate(options.operation, name, options.ranks, options.bytes, network)
        for name in names
    ]
    if options.json:
        return records if several else records[0]
    figures = table(records) if several else report(records[0])
    texts = (f"{title}\n" * (len(drawn) > 1) + text for title, (_, text) in drawn.items())
    return "\n\n".join([figures, *texts, LEGEND]) if options.draw else figures


def _swept(options: argparse.Namespace, names: list[str], network: Network) -> Any:
    """Returns the output of --sweep, a table or JSON; also writes the plot."""
    if options.plot and (problem := cli.picture_problem(options.plot)):
        raise ValueError(f"{problem}, or leave out --plot")
    swept = sweep.sweep(
        options.sweep, options.operation, names, options.ranks, options.bytes, network
    )
    if options.plot:
        sweep.plot(options.sweep, swept, options.plot)
    return sweep.records(swept) if options.json else sweep.table(options.sweep, swept)


def _drawn(
    options: argparse.Namespace, names: list[str], network: Network, option: str
) -> dict[str, tuple[Algorithm, str]]:
    """Returns each algorithm with its drawing; a ValueError names `option`."""
    drawn, claim = {}, OPERATIONS[options.operation].collective.claim
    for name in names:
        plan = collective.plan(options.operation, name, options.ranks, network)
        title = f"{options.operation} by {name} on {plural(options.ranks, 'rank')}"
        try:
            drawn[title] = plan, draw(plan, options.ranks, claim)
        except PlanError as error:
            raise ValueError(
                f"{name} can be priced but not drawn, since it does not work in place ({error}); "
                f"name others with --algorithm, or leave out {option}"
            ) from None
        except ValueError as error:
            raise ValueError(f"{error}, or leave out {option}") from None
    return drawn


def report(c: Record) -> str:
    """Returns the cost of one algorithm as text, with its formulas, from its record `c`."""
    lines = [
        _heading(f"{c['operation']} by {c['algorithm']}", c),
        f"time      {duration(c['seconds'])}",
        f"rounds    {c['rounds']:,}",
        f"sent      {_spread(c['sent'], amount)}",
        f"messages  {_spread(c['messages'], _count)}",
    ]
    if user_code.is_named(c["algorithm"]):
        lines.append(f"proved    for {verify.MANY.start} to {verify.MANY.stop - 1} ranks")
    for name, figure in (("textbook", c["textbook"]), ("our plan", c["plan"])):
        if figure:
            lines.append(f"{name}  {figure['formula']} = {duration(figure['seconds'])}")
    for difference in c["differences"]:
        seconds = difference["seconds"]
        if abs(seconds) > ROUNDING * c["seconds"]:
            sign = f"{'-' if seconds < 0 else '+'}{duration(abs(seconds))}"
            lines.append(f"          {sign}  {difference['formula']}: {difference['why']}")
    return "\n".join(lines)


def _heading(title: str, c: Record) -> str:
    """Returns a heading with the title, the number of ranks, the size and the network."""
    return f"{title}: {plural(c['ranks'], 'rank')}, {amount(c['bytes'])}\n{net.as_text(c)}"


def _count(x: float) -> str:
    return f"{x:,.4g}" if x < 1000 else f"{x:,.0f}"


def _spread(s: Record, show: Callable[[float], str]) -> str:
    if s["least"] == s["most"]:
        return f"{show(s['most'])} by each rank"
    return f"{show(s['most'])} at most, {show(s['mean'])} on average, {show(s['least'])} at least"


def table(records: list[Record]) -> str:
    """Returns a text table with the costs of several algorithms of one operation."""
    best = min(c["seconds"] for c in records)

    def to_fastest(seconds: float) -> str:
        return f"{seconds / best:.2f}" if best else "-" if seconds else "1.00"

    cells = {
        "algorithm": lambda c: c["algorithm"],
        "time": lambda c: duration(c["seconds"]),
        "to fastest": lambda c: to_fastest(c["seconds"]),
        "rounds": lambda c: f"{c['rounds']:,}",
        "sent at most": lambda c: amount(c["sent"]["most"]),
        "messages": lambda c: _count(c["messages"]["most"]),
        "textbook": lambda c: duration(c["textbook"]["seconds"]) if c["textbook"] else "-",
    }
    return f"{_heading(records[0]['operation'], records[0])}\n{tables.table(cells, records)}"
