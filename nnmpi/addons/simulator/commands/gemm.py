"""`python -m nnmpi.simulate gemm`: a matrix product divided among ranks."""

import argparse
import re
from operator import itemgetter
from typing import Any

from nnmpi.addons.simulator import gemm
from nnmpi.addons.simulator import network as net
from nnmpi.addons.simulator.gemm import FAMILIES, Gemm, PlanFamily
from nnmpi.addons.simulator.network import Record
from nnmpi.options.amounts import amount, duration, plural
from nnmpi.options.tables import table

HELP = "matrix products on ranks"

MAX_SIZE = 10**9  # of a matrix
MAX_RANKS = 1024  # a ring is priced round by round, for all ranks


def add_options(p: argparse.ArgumentParser) -> None:
    """Adds the options of the subcommand `gemm`."""
    product = p.add_argument_group("product", "x (N, K) times the weight (O, K) transposed")
    product.add_argument("--rows", type=int, required=True, metavar="N", help="rows of x")
    product.add_argument("--inner", type=int, required=True, metavar="K", help="columns of x")
    product.add_argument("--columns", type=int, required=True, metavar="O", help="columns of y")
    ranks = p.add_argument_group("ranks")
    ranks.add_argument("--ranks", type=int, required=True, metavar="P")
    ranks.add_argument("--grid", metavar="QxR", help="one grid (default: all of P ranks)")
    moved = "columns of x that a grid moves at a time"
    net.add_number(ranks, "--panel", str(gemm.PANEL), moved, int, "W")
    net.add_number(ranks, "--dtype-bytes", "4", "bytes of an element", int, "B")
    net.add_number(ranks, "--flops", "1e11", "floating-point operations per second of a rank")
    net.add_options(p)
    output = p.add_argument_group("output")
    output.add_argument("--json", action="store_true", help="print JSON")


def run(options: argparse.Namespace) -> Any:
    """Returns the output of the subcommand `gemm`, as text or as JSON records."""
    g = Gemm(options.rows, options.inner, options.columns)
    grids, network = _grids(g, options), net.network(options)
    records: list[Record] = []
    parts = []
    for layers, family in FAMILIES.items():
        least_ranks = gemm.turning_point(family, g)
        family_records = [
            {
                "layers": layers,
                "layout": name,
                **g._asdict(),
                "ranks": options.ranks,
                "dtype_bytes": options.dtype_bytes,
                "flops": options.flops,
                "panel": options.panel,
                **net.record(network),
                **gemm.cost(plan, network, options.flops, options.dtype_bytes),
                "two_dimensions_receive_least_from_ranks": least_ranks,
            }
            for name, plan in gemm.plans(family, g, grids, options.panel).items()
        ]
        records += family_records
        parts.append("\n".join([_table(family, family_records), *_verdict(family, family_records)]))
    return records if options.json else "\n\n".join([_heading(records[0]), *parts])


def _grids(g: Gemm, options: argparse.Namespace) -> list[tuple[int, int]]:
    """Returns the grids (rows, columns) to compare; raises ValueError out of range."""
    for name, size in g._asdict().items():
        net.check_count(name, size, MAX_SIZE)
    net.check_count("ranks", options.ranks, MAX_RANKS)
    net.check_count("panel", options.panel, MAX_SIZE)
    net.check_count("dtype-bytes", options.dtype_bytes, 16)
    if min(g.inner, g.columns) < options.ranks:
        raise ValueError(
            f"--inner {g.inner} and --columns {g.columns} cannot be divided among {options.ranks} "
            "ranks, since each rank needs at least one: take fewer ranks"
        )
    net.check_number("flops", options.flops, 1)
    if options.grid is None:
        return gemm.grids_of(options.ranks)
    sides = re.fullmatch(r"(\d{1,9})x(\d{1,9})", options.grid)
    if sides is None:
        raise ValueError(f"grid {options.grid!r} must be two numbers, as in 2x3")
    q, r = int(sides[1]), int(sides[2])
    if q * r != options.ranks:
        raise ValueError(
            f"grid {options.grid} has {q * r} ranks, not {options.ranks}: take two numbers whose "
            f"product is {options.ranks}"
        )
    return [(q, r)]


def _heading(r: Record) -> str:
    return (
        f"gemm: N = {r['rows']:,}, K = {r['inner']:,}, O = {r['columns']:,}, with both gradients: "
        f"{plural(r['ranks'], 'rank')}, {r['dtype_bytes']} bytes a number\n"
        f"{net.as_text(r)}, {r['flops']:g} flop/s"
    )


def _table(family: PlanFamily, records: list[Record]) -> str:
    """Returns a text table that compares the ways to divide the product among ranks."""
    fastest = min(r["seconds"] for r in records)
    cells = {
        family.about: lambda r: r["layout"],
        "time": lambda r: duration(r["seconds"]),
        "to fastest": lambda r: f"{r['seconds'] / fastest:.2f}",
        "communication": lambda r: f"{r['communication'] / r['seconds']:.0%}",
        "received": lambda r: amount(r["received"]),
        "messages": lambda r: f"{r['messages']:,}",
        "weight": lambda r: amount(r["weight"]),
        "activations": lambda r: amount(r["activations"]),
        "memory": lambda r: amount(r["memory"]),
    }
    return table(cells, records)


def _verdict(family: PlanFamily, records: list[Record]) -> list[str]:
    """Returns lines on the best ways, and from when on a grid receives least."""
    goals = {"fastest": "seconds", "least received": "received", "least memory": "memory"}
    best = [f"{goal}: {min(records, key=itemgetter(key))['layout']}" for goal, key in goals.items()]
    least_ranks = records[0]["two_dimensions_receive_least_from_ranks"]
    others = ", ".join([*family.lines, "1xP", "Px1"])
    where = f"nowhere up to {gemm.MOST_RANKS:,} ranks"
    if least_ranks:
        where = f"from {least_ranks:,} ranks on (powers of two)"
    return ["; ".join(best), f"where a 2-D grid receives less than {others}: {where}"]
