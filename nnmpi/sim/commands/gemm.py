"""The subcommand `gemm` of `python -m nnmpi.simulate`: its options, and its output."""

import argparse
import json
import re
from collections.abc import Callable
from typing import Any, NamedTuple

from nnmpi.sim import gemm, show
from nnmpi.sim.commands import network_options
from nnmpi.sim.gemm import FAMILIES, Cost, Family, Gemm, Machine

HELP = "matrix products on ranks"

MAX_SIZE = 10**9  # of a matrix
MAX_RANKS = 1024  # a ring is priced round by round, for all ranks
MAX_RATE = 1e30


class Question(NamedTuple):
    """What is compared, on which ranks."""

    gemm: Gemm
    ranks: int
    grids: list[tuple[int, int]]
    machine: Machine


class Answer(NamedTuple):
    """The cost of each layout of a family, by name."""

    layers: int
    costs: dict[str, Cost]
    turning_point: int | None


def add_options(p: argparse.ArgumentParser) -> None:
    """The options of the subcommand."""
    product = p.add_argument_group("product", "x (N, K) times the weight (O, K) transposed")
    product.add_argument("--rows", type=int, required=True, metavar="N", help="rows of x")
    product.add_argument("--inner", type=int, required=True, metavar="K", help="columns of x")
    product.add_argument("--columns", type=int, required=True, metavar="O", help="columns of y")
    ranks = p.add_argument_group("ranks")
    ranks.add_argument("--ranks", type=int, required=True, metavar="P")
    ranks.add_argument("--grid", metavar="QxR", help="one grid (default: all of P ranks)")
    ranks.add_argument(
        "--panel",
        type=int,
        default=gemm.PANEL,
        metavar="W",
        help=f"columns of x that a grid moves at a time (default {gemm.PANEL})",
    )
    ranks.add_argument(
        "--dtype-bytes", type=int, default=4, metavar="B", help="bytes of a number (default 4)"
    )
    ranks.add_argument(
        "--flops", type=float, default=1e11, help="operations a second of a rank (default 1e11)"
    )
    network_options.add_options(p)
    output = p.add_argument_group("output")
    output.add_argument("--json", action="store_true", help="print JSON")


def run(options: argparse.Namespace) -> str:
    """The output of `gemm`."""
    q = question(options)
    answers = [answer(layers, q) for layers in FAMILIES]
    if options.json:
        records = [r for a in answers for r in in_json(a, q)]
        return json.dumps(records, indent=2)
    return "\n\n".join([heading(q), *(table(a) for a in answers)])


def question(options: argparse.Namespace) -> Question:
    """The question of the options; raises ValueError for numbers out of range."""
    g = Gemm(options.rows, options.inner, options.columns)
    for name, size in zip(("rows", "inner", "columns"), g, strict=True):
        _check(name, size, MAX_SIZE)
    _check("ranks", options.ranks, MAX_RANKS)
    _check("panel", options.panel, MAX_SIZE)
    _check("dtype-bytes", options.dtype_bytes, 16)
    if min(g.inner, g.columns) < options.ranks:
        raise ValueError(
            f"inner {g.inner} and columns {g.columns} cannot be divided among {options.ranks} "
            "ranks, of which each needs one: take fewer ranks"
        )
    if not 1 <= options.flops <= MAX_RATE:
        raise ValueError(f"flops {options.flops} must be a number from 1 to {MAX_RATE:g}")
    grids = gemm.grids_of(options.ranks) if options.grid is None else [grid(options)]
    network = network_options.network(options)
    machine = Machine(network, options.flops, options.dtype_bytes, options.panel)
    return Question(g, options.ranks, grids, machine)


def grid(options: argparse.Namespace) -> tuple[int, int]:
    """The two sides of --grid."""
    sides = re.fullmatch(r"(\d{1,9})x(\d{1,9})", options.grid)
    if sides is None:
        raise ValueError(f"grid {options.grid!r} must be two numbers, as in 2x3")
    q, r = int(sides[1]), int(sides[2])
    if q * r != options.ranks:
        raise ValueError(
            f"grid {options.grid} has {q * r} ranks, not {options.ranks}: take two numbers of "
            f"which {options.ranks} is the product"
        )
    return q, r


def _check(name: str, value: int, most: int) -> None:
    if not 1 <= value <= most:
        raise ValueError(f"{name} {value} must be from 1 to {most}")


def answer(layers: int, q: Question) -> Answer:
    """The cost of all layouts of so many layers."""
    family = FAMILIES[layers]
    plans = gemm.plans(family, q.gemm, q.grids, q.machine.panel)
    costs = {name: gemm.cost(plan, q.machine) for name, plan in plans.items()}
    return Answer(layers, costs, gemm.turning_point(family, q.gemm))


def heading(q: Question) -> str:
    """The numbers of the question."""
    N, K, O = q.gemm
    m = q.machine
    ranks = "1 rank" if q.ranks == 1 else f"{q.ranks:,} ranks"
    return (
        f"gemm: N = {N:,}, K = {K:,}, O = {O:,}, with both gradients: {ranks}, "
        f"{m.itemsize} bytes a number\n"
        f"{show.network(m.network)}, {m.flops:g} flop/s"
    )


def table(a: Answer) -> str:
    """The layouts side by side, and which of them is best."""
    family = FAMILIES[a.layers]
    fastest = min(c.seconds for c in a.costs.values())
    rows = [
        [family.about, "time", "to fastest", "communication", "received", "messages",
         "weight", "activations", "memory"]
    ]  # fmt: skip
    rows += [
        [
            name,
            show.duration(c.seconds),
            f"{c.seconds / fastest:.2f}",
            f"{c.communication / c.seconds:.0%}",
            show.amount(c.received),
            f"{c.messages:,}",
            *(show.amount(n) for n in (c.weight, c.activations, c.memory)),
        ]
        for name, c in a.costs.items()
    ]
    return "\n".join([show.columns(rows), *verdict(a, family)])


def verdict(a: Answer, family: Family) -> list[str]:
    """Which layouts are best, and from how many ranks on a grid of two dimensions is."""

    def least(value: Callable[[Cost], float]) -> str:
        return min(a.costs, key=lambda name: value(a.costs[name]))

    best = [
        f"fastest: {least(lambda c: c.seconds)}",
        f"least received: {least(lambda c: c.received)}",
        f"least memory: {least(lambda c: c.memory)}",
    ]
    others = ", ".join([*family.lines, "1xP", "Px1"])
    point = a.turning_point
    where = (
        f"from {point:,} ranks on (powers of two)"
        if point
        else f"not up to {gemm.MOST_RANKS:,} ranks"
    )
    return [
        "; ".join(best),
        f"where 2-D wins: {where}, a grid of two dimensions receives less than {others}",
    ]


def in_json(a: Answer, q: Question) -> list[dict[str, Any]]:
    """A JSON object for each layout."""
    return [
        {
            "layers": a.layers,
            "layout": name,
            **q.gemm._asdict(),
            "ranks": q.ranks,
            "dtype_bytes": q.machine.itemsize,
            "flops": q.machine.flops,
            "panel": q.machine.panel,
            **show.network_record(q.machine.network),
            "seconds": c.seconds,
            **c._asdict(),
            "memory": c.memory,
            "two_dimensions_receive_least_from_ranks": a.turning_point,
        }
        for name, c in a.costs.items()
    ]
