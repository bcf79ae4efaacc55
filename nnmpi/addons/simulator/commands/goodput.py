"""`python -m nnmpi.simulate goodput`: the share of useful work if nodes fail."""

import argparse
from pathlib import Path
from typing import Any

from nnmpi.addons.simulator import goodput
from nnmpi.addons.simulator import network as net
from nnmpi.addons.simulator.drawing.curves import Point, curves
from nnmpi.addons.simulator.goodput import Backup, Job, Spares
from nnmpi.addons.simulator.network import Record
from nnmpi.options import cli, value_forms
from nnmpi.options.amounts import plural
from nnmpi.options.tables import table

HELP = "what failures cost: the share of time that is work"

FAILURES = 20_000  # simulated for a row
MOST_SPARES = 10_000
INTERVALS = {
    "best": goodput.best_interval,
    "Daly": goodput.daly_interval,
    "Young": goodput.young_interval,
}
"""Computing time between checkpoints, from their seconds and the mean time to failure."""


def add_options(p: argparse.ArgumentParser) -> None:
    """Adds the options of the subcommand `goodput`."""
    job, duration = p.add_argument_group("job"), cli.argument(value_forms.duration)
    job.add_argument("--ranks", type=int, required=True, metavar="P")
    about = "ranks that are lost together (default 8, or all)"
    job.add_argument("--ranks-per-node", type=int, metavar="Q", help=about)
    for flag, needed, about in (
        ("--mttf-node", True, "mean time to failure of a node, such as 30000h"),
        ("--checkpoint", True, "time of a checkpoint, in which nothing is computed"),
        ("--restart", True, "time from a failure to the next computing"),
        ("--every", False, "between checkpoints (default: the best)"),
        ("--recover", False, "to go on from a --backup (default: as --restart)"),
        ("--repair", False, "until a lost node is back, with --spares (default 1d)"),
    ):
        job.add_argument(flag, type=duration, required=needed, metavar="TIME", help=about)
    about = "copies in another node's memory, every TIME (default 60s)"
    job.add_argument("--backup", type=duration, metavar="TIME", nargs="?", const=60.0, help=about)
    job.add_argument("--spares", type=int, metavar="N", help="nodes that replace lost ones")
    output = p.add_argument_group("output")
    output.add_argument("--seed", type=int, default=0, help="of the simulated failures")
    output.add_argument("--svg", type=Path, metavar="FILE", help="write a picture")
    output.add_argument("--json", action="store_true", help="print JSON")


def run(options: argparse.Namespace) -> Any:
    """Returns the output of the subcommand `goodput`, as text or as JSON records."""
    job = _job(options)
    intervals = {name: f(job.write, job.mttf_checkpoint) for name, f in INTERVALS.items()}
    intervals |= {"given": options.every} if options.every else {}
    by_interval = [_record(n, job._replace(every=x), options) for n, x in intervals.items()]
    kinds = {"checkpoints": job._replace(backup=None, spares=None)}
    kinds |= {"and --backup": job._replace(spares=None)} if job.backup else {}
    kinds |= {f"and --spares {options.spares}": job} if job.spares else {}
    sizes = [n for k in range(-5, 3) if (n := round(job.nodes * 4.0**k))]
    curve = {
        kind: [
            _record(kind, _at(each, n, options.every), options)
            for n in sizes
            if n > 1 or not each.backup  # a single node has no partner
        ]
        for kind, each in kinds.items()
    }
    by_ranks = [record for records in curve.values() for record in records]
    heading = (
        f"goodput: {plural(job.nodes, 'node')} of {plural(options.ranks_per_node, 'rank')}, one is "
        f"lost every {_time(job.mttf)}; checkpoint {_time(job.write)}, restart {_time(job.restart)}"
    )
    if options.svg:
        points = {kind: [*map(_point, records)] for kind, records in curve.items()}
        options.svg.write_text(curves(points, heading, "ranks"), encoding="utf-8")
    if options.json:
        return by_interval + by_ranks
    return f"{heading}\n\n{_table('interval', by_interval)}\n\n{_table('', by_ranks)}"


def _job(options: argparse.Namespace) -> Job:
    """Returns the job that the options describe; raises ValueError for numbers out of range."""
    net.check_count("ranks", options.ranks)
    if options.ranks_per_node is None:
        options.ranks_per_node = min(8, options.ranks)
    net.check_count("ranks-per-node", options.ranks_per_node, options.ranks)
    for flag, needed in (("recover", "backup"), ("repair", "spares")):
        if getattr(options, flag) is not None and getattr(options, needed) is None:
            raise ValueError(f"--{flag} has no meaning without --{needed}: add it, or leave it out")
    nodes, rest = divmod(options.ranks, options.ranks_per_node)
    if rest:
        raise ValueError(
            f"--ranks {options.ranks} do not fill nodes of {options.ranks_per_node}: give a "
            "multiple of it, or another --ranks-per-node"
        )
    job = Job(nodes, options.mttf_node, options.checkpoint, options.restart, 1.0)
    if options.backup:
        if options.every and options.every < options.backup:
            raise ValueError(
                f"--backup {options.backup:g} s is longer than --every {options.every:g} s, so "
                "copies would be older than checkpoints: copy more often"
            )
        if nodes == 1:
            raise ValueError(
                f"--backup needs a second node for the copies, and {options.ranks} ranks are one "
                f"node of {options.ranks_per_node}: leave it out, or lower --ranks-per-node"
            )
        job = job._replace(backup=Backup(options.backup, options.recover or options.restart))
    if options.spares is not None:
        if not 0 <= options.spares <= MOST_SPARES:
            raise ValueError(f"--spares {options.spares} must be from 0 to {MOST_SPARES}")
        job = job._replace(spares=Spares(options.spares, options.repair or 86400.0))
    return job


def _at(job: Job, nodes: int, every: float | None) -> Job:
    """Returns the job, changed to run on `nodes` nodes, with a checkpoint after every `every`
    seconds of computing; for None, at the interval with the best goodput."""
    job = job._replace(nodes=nodes)
    return job._replace(every=every or goodput.best_interval(job.write, job.mttf_checkpoint))


def _record(case: str, job: Job, options: argparse.Namespace) -> Record:
    simulated, error = goodput.simulate(job, FAILURES, options.seed)
    return {
        "case": case,
        "ranks": job.nodes * options.ranks_per_node,
        "mttf": job.mttf,
        "every": job.every,
        "closed_form": goodput.expected(job),
        "simulated": simulated,
        "standard_error": error,
    }


def _point(r: Record) -> Point:
    return Point(r["ranks"], r["closed_form"], r["simulated"], r["standard_error"])


def _time(seconds: float) -> str:
    """Formats seconds as text with four digits or more; from two hours on, in hours."""
    if seconds < 7200:
        return f"{seconds:.4g} s"
    return f"{seconds / 3600:,.0f} h" if seconds >= 3.6e6 else f"{seconds / 3600:.4g} h"


def _table(title: str, records: list[Record]) -> str:
    cells = {
        title: lambda r: r["case"],
        "ranks": lambda r: f"{r['ranks']:,}",
        "a failure in": lambda r: _time(r["mttf"]),
        "checkpoint every": lambda r: _time(r["every"]),
        "closed form": lambda r: f"{r['closed_form']:.4f}",
        "simulated": lambda r: f"{r['simulated']:.4f}",
        "error": lambda r: f"{r['standard_error']:.5f}",
    }
    return table(cells, records)
