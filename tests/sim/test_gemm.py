"""The cost of sharded matrix products: its formulas, and what layers really send."""

from collections.abc import Callable

import numpy as np
import pytest

import nnmpi
from nnmpi import nn
from nnmpi.collectives.price import Link, Network
from nnmpi.comm import Comm
from nnmpi.comm import thread_ranks as threads
from nnmpi.parallel.tensor import ops
from nnmpi.parallel.tensor.layers import ColumnLinear, RowLinear
from nnmpi.sim import gemm
from nnmpi.sim.gemm import FAMILIES, Gemm, ProductPlan

FLAT = Network(Link(1e-6, 1e-9))
SIZE = Gemm(48, 60, 72)  # more than 8192 bytes each, which all-reduces send by doubling
N, K, O = SIZE
PANEL = 20

# ---- formulas


@pytest.mark.parametrize(
    ("plan", "numbers"),
    [
        (gemm.column(SIZE, 6), (N * O + 2 * N * K) * 5 / 6),
        (gemm.row(SIZE, 6), (2 * N * O + N * K) * 5 / 6),
        (gemm.column_row(SIZE, 6), 4 * N * K * 5 / 6),
        (gemm.summa(SIZE, 2, 3), 3 * N * K / 2 * 2 / 3 + 3 * O * K / 3 * 1 / 2),
        (gemm.summa(SIZE, 1, 6, PANEL), 3 * N * K * 5 / 6),
        (gemm.summa(SIZE, 6, 1, PANEL), 3 * O * K * 5 / 6),
        (gemm.summa(SIZE, 1, 1), 0),
        (gemm.summa_twice(SIZE, 2, 3), 3 * (N * K + N * O) / 2 * 2 / 3 + 2 * 3 * O * K / 3 * 1 / 2),
    ],
)
def test_numbers_received(plan: ProductPlan, numbers: float) -> None:
    assert plan.received == pytest.approx(numbers)
    assert gemm.cost(plan, FLAT, 1e9, 4)["received"] == pytest.approx(4 * numbers)


def every_plan(p: int) -> list[ProductPlan]:
    grids = gemm.grids_of(p)
    return [x for f in FAMILIES.values() for x in gemm.plans(f, SIZE, grids, PANEL).values()]


@pytest.mark.parametrize("p", [1, 2, 6, 12])
def test_on_one_level_the_time_is_that_of_all_messages_and_bytes(p: int) -> None:
    for plan in every_plan(p):
        c = gemm.cost(plan, FLAT, 1e9, 4)
        assert c["communication"] == pytest.approx(1e-6 * c["messages"] + 1e-9 * c["received"])
        layers = 2 if plan.operations > 6 * N * K * O / p else 1
        assert c["computation"] == pytest.approx(layers * 3 * 2 * N * K * O / p / 1e9)


def test_rows_of_a_grid_stay_in_their_node_and_its_columns_share_its_link() -> None:
    nodes = Network(Link(1e-6, 1e-9), 0.0, Link(1e-8, 1e-12), per_node=3)
    c = gemm.cost(gemm.summa(SIZE, 2, 3), nodes, 1e9, 4)
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
    "column": (3, run_column, gemm.column(SIZE, 3)),
    "row": (3, run_row, gemm.row(SIZE, 3)),
    "column + row": (3, run_column_row, gemm.column_row(SIZE, 3)),
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
