"""Sharded matrix products: the command nnmpi.simulate gemm, the formulas of its costs, and what
layers really send."""

import json
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import nnmpi
from nnmpi import nn
from nnmpi.addons.simulator import gemm
from nnmpi.addons.simulator.gemm import FAMILIES, Gemm, ProductPlan
from nnmpi.collectives.price import Link, Network
from nnmpi.comm import Comm
from nnmpi.comm import thread_ranks as threads
from nnmpi.parallel.tensor import ops
from nnmpi.parallel.tensor.layers import ColumnLinear, RowLinear

KIND = "gemm"

SIZE = "--rows 4096 --inner 4096 --columns 4096"


def test_the_tables(simulator: Any) -> None:
    result = simulator(f"{SIZE} --ranks 16")
    assert (result.status, result.err) == (0, "")
    head, one, two = result.out.split("\n\n")
    assert head == (
        "gemm: N = 4,096, K = 4,096, O = 4,096, with both gradients: 16 ranks, 4 bytes a number\n"
        "alpha 5e-06 s, beta 1e-10 s/B, gamma 0 s/B, 1e+11 flop/s"
    )
    title, *rows, best, point = one.splitlines()
    assert title.startswith("one layer, K -> O")
    cells = [re.split(r"  +", row) for row in rows]
    grids = [f"2-D {grid}" for grid in ("1x16", "2x8", "4x4", "8x2", "16x1")]
    assert [row[0] for row in cells] == ["column", "row", *grids]
    assert cells[4] == [
        *("2-D 4x4", "266 ms", "1.00", "3%", "75.5 MB", "144"),
        *("4.194 MB", "8.389 MB", "39.85 MB"),
    ]
    assert best == "fastest: 2-D 4x4; least received: 2-D 4x4; least memory: 2-D 4x4"
    assert point == (
        "where a 2-D grid receives less than column, row, 1xP, Px1: from 4 ranks on (powers of two)"
    )
    assert two.splitlines()[0].startswith("two layers, K -> O -> K")
    assert "where a 2-D grid receives less than" in two
    assert ": from 8 ranks on (powers of two)" in two


def test_one_grid(simulator: Any) -> None:
    out = simulator(f"{SIZE} --ranks 6 --grid 2x3").out
    assert re.findall(r"^2-D (\w+)", out, re.M) == ["2x3", "2x3"]
    assert simulator(f"{SIZE} --ranks 6").out.count("2-D 2x3 ") == 2


def test_where_one_dimension_always_wins(simulator: Any) -> None:
    out = simulator("--rows 1 --inner 64 --columns 1000000000 --ranks 4").out
    assert ", Px1: nowhere up to 1,048,576 ranks" in out


def test_one_rank_moves_nothing(simulator: Any) -> None:
    rows = json.loads(simulator("--rows 8 --inner 4 --columns 4 --ranks 1 --json").out)
    assert [row["layout"] for row in rows] == ["column", "row", "2-D 1x1", "column + row",
                                               "2-D 1x1"]  # fmt: skip
    assert all(row["received"] == row["messages"] == row["communication"] == 0 for row in rows)


def test_json(simulator: Any) -> None:
    rows = json.loads(
        simulator(f"{SIZE} --ranks 4 --dtype-bytes 8 --flops 1e12 --panel 1024 --json").out
    )
    assert [(row["layers"], row["layout"]) for row in rows] == [
        *((1, name) for name in ("column", "row", "2-D 1x4", "2-D 2x2", "2-D 4x1")),
        *((2, name) for name in ("column + row", "2-D 1x4", "2-D 2x2", "2-D 4x1")),
    ]
    square = rows[3]
    assert (square["rows"], square["inner"], square["columns"], square["ranks"]) == (*[4096] * 3, 4)
    assert square["received"] == 8 * 4096**2 * 3 * (1 / 4 + 1 / 4)
    assert square["messages"] == 6 * 4
    assert square["computation"] == pytest.approx(6 * 4096**3 / 4 / 1e12)
    assert (square["alpha"], square["beta"], square["per_node"]) == (5e-6, 1e-10, None)
    assert square["seconds"] == square["communication"] + square["computation"]
    assert square["memory"] == 2 * (square["weight"] + square["activations"]) + square["panels"]


def test_two_levels(simulator: Any) -> None:
    size = f"{SIZE} --ranks 8 --per-node 4 --inner-alpha 1e-6 --inner-beta 1e-11"
    assert "gamma 0 s/B; in nodes of 4: alpha 1e-06 s" in simulator(size).out
    seconds = {
        row["layout"]: row["communication"] for row in json.loads(simulator(f"{size} --json").out)
    }
    assert seconds["2-D 2x4"] < seconds["2-D 4x2"]  # its rows are nodes


FLAT = Network(Link(1e-6, 1e-9))
SMALL = Gemm(48, 60, 72)  # more than 8192 bytes each, which all-reduces send by doubling
N, K, O = SMALL
PANEL = 20

# ---- formulas


@pytest.mark.parametrize(
    ("plan", "numbers"),
    [
        (gemm.column(SMALL, 6), (N * O + 2 * N * K) * 5 / 6),
        (gemm.row(SMALL, 6), (2 * N * O + N * K) * 5 / 6),
        (gemm.column_row(SMALL, 6), 4 * N * K * 5 / 6),
        (gemm.summa(SMALL, 2, 3), 3 * N * K / 2 * 2 / 3 + 3 * O * K / 3 * 1 / 2),
        (gemm.summa(SMALL, 1, 6, PANEL), 3 * N * K * 5 / 6),
        (gemm.summa(SMALL, 6, 1, PANEL), 3 * O * K * 5 / 6),
        (gemm.summa(SMALL, 1, 1), 0),
        (
            gemm.summa_twice(SMALL, 2, 3),
            3 * (N * K + N * O) / 2 * 2 / 3 + 2 * 3 * O * K / 3 * 1 / 2,
        ),
    ],
)
def test_numbers_received(plan: ProductPlan, numbers: float) -> None:
    assert plan.received == pytest.approx(numbers)
    assert gemm.cost(plan, FLAT, 1e9, 4)["received"] == pytest.approx(4 * numbers)


def every_plan(p: int) -> list[ProductPlan]:
    grids = gemm.grids_of(p)
    return [x for f in FAMILIES.values() for x in gemm.plans(f, SMALL, grids, PANEL).values()]


@pytest.mark.parametrize("p", [1, 2, 6, 12])
def test_on_one_level_the_time_is_that_of_all_messages_and_bytes(p: int) -> None:
    for plan in every_plan(p):
        c = gemm.cost(plan, FLAT, 1e9, 4)
        assert c["communication"] == pytest.approx(1e-6 * c["messages"] + 1e-9 * c["received"])
        layers = 2 if plan.operations > 6 * N * K * O / p else 1
        assert c["computation"] == pytest.approx(layers * 3 * 2 * N * K * O / p / 1e9)


def test_rows_of_a_grid_stay_in_their_node_and_its_columns_share_its_link() -> None:
    nodes = Network(Link(1e-6, 1e-9), 0.0, Link(1e-8, 1e-12), per_node=3)
    c = gemm.cost(gemm.summa(SMALL, 2, 3), nodes, 1e9, 4)
    inside = 3 * (2 * 1e-8 + 4 * N * K / 2 * 2 / 3 * 1e-12)
    outside = 3 * (1e-6 + 3 * 4 * O * K / 3 * 1 / 2 * 1e-9)
    assert c["communication"] == pytest.approx(inside + outside)


def test_where_two_dimensions_receive_least() -> None:
    one, two = FAMILIES[1], FAMILIES[2]
    assert gemm.turning_point(one, Gemm(4096, 4096, 4096)) == 4
    assert gemm.turning_point(two, Gemm(4096, 4096, 4096)) == 8  # 4.5 (K+O)O / (NK) = 9
    assert gemm.turning_point(one, Gemm(1024, 4096, 16384)) == 64  # 4 O/N
    assert gemm.turning_point(one, Gemm(16384, 4096, 1024)) == 64  # 4 N/O
    assert gemm.turning_point(one, Gemm(1, 4096, 10**9)) is None


def test_grids_of_a_number_of_ranks() -> None:
    assert gemm.grids_of(12) == [(1, 12), (2, 6), (3, 4), (4, 3), (6, 2), (12, 1)]
    assert gemm.grids_of(9) == [(1, 9), (3, 3), (9, 1)]
    assert gemm.grids_of(7) == [(1, 7), (7, 1)]


# ---- what layers send

Run = Callable[[Comm], list[Comm]]
"""Forward and backward of layers; returns the communicators that they have used."""


def trained(model: nn.Module, x: nnmpi.Tensor) -> None:
    y = model(x)
    y.backward(np.ones(y.shape))


def whole(comm: Comm) -> nnmpi.Tensor:
    return nnmpi.tensor(np.ones((N, K)), dtype="float32", requires_grad=True)


class Scattered(nn.Module):
    """A row layer whose input is whole."""

    def __init__(self, comm: Comm) -> None:
        self.layer = RowLinear(K, O, comm, bias=False)

    def forward(self, x: nnmpi.Tensor) -> nnmpi.Tensor:
        return self.layer(ops.scatter(x, self.layer.comm, self.layer.bounds, 1))


def run_column(comm: Comm) -> list[Comm]:
    trained(ColumnLinear(K, O, comm, bias=False, gather_output=True), whole(comm))
    return [comm]


def run_row(comm: Comm) -> list[Comm]:
    trained(Scattered(comm), whole(comm))
    return [comm]


def run_column_row(comm: Comm) -> list[Comm]:
    layers = ColumnLinear(K, O, comm, bias=False), RowLinear(O, K, comm, bias=False)
    trained(nn.Sequential(*layers), whole(comm))
    return [comm]


CASES: dict[str, tuple[int, Run, ProductPlan]] = {
    "column": (3, run_column, gemm.column(SMALL, 3)),
    "row": (3, run_row, gemm.row(SMALL, 3)),
    "column + row": (3, run_column_row, gemm.column_row(SMALL, 3)),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_layers_send_what_their_plan_says(case: tuple[int, Run, ProductPlan]) -> None:
    """Without shared memory to sum in, as on several nodes: all-reduces go by rings."""
    p, run, plan = case

    def counted(comm: Comm) -> tuple[int, int]:
        ledgers = [c.ledger for c in run(comm)]
        return (
            sum(sum(ledger.received_messages) for ledger in ledgers),
            sum(sum(ledger.received_bytes) for ledger in ledgers),
        )

    messages, nbytes = zip(*threads.run(p, counted, free_memory=0), strict=True)
    c = gemm.cost(plan, FLAT, 1e9, 4)
    assert sum(messages) / p == c["messages"]
    assert sum(nbytes) / p == pytest.approx(c["received"])
