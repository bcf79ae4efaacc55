"""The cost of a matrix product that is sharded over ranks: over a line of them (1-D) or a grid
(2-D).

A layer K -> O computes y = x w.T, and the two products of its gradients, dx = g w and dw = g.T x. x
is (N, K), w is (O, K), y is (N, O). Each of p ranks receives, in elements, over all three:

    column          y is gathered, dx is all-reduced              (NO + 2NK)(p-1)/p
    row             y is all-reduced, dx is gathered              (2NO + NK)(p-1)/p
    column + row    two layers, K -> O -> K: y of the second
                    and dx of the first are all-reduced           4NK(p-1)/p
    2-D, q x r      each product moves x or its gradient along
                    rows, w or its gradient along columns         3NK/q (r-1)/r + 3OK/r (q-1)/q

All use rings: of a buffer of n elements each of m ranks receives n(m-1)/m in m - 1 messages if it
is gathered or reduce-scattered, and twice that if it is all-reduced. In 2-D the buffers of a rank
are its rows of x, NK/q, and its rows of w, OK/r. They are moved in panels of K, each with messages
of its own, as in SUMMA (van de Geijn and Watts, 1997). No layer of nnmpi computes in 2-D:
activations between two such layers would be cut along two axes of ranks, and each layer in between
would need a rule for both. Between many nodes `--dp q --zero 3 --tp r` sends nearly as little.

In 1-D, the received elements do not decrease with p; in 2-D they are about 6K sqrt(NO/p) on the
best grid. A 1 x p grid never moves w and receives 3NK(p-1)/p. A p x 1 grid never moves x, which is
data parallelism with sharded weights (ZeRO 3), and receives 3OK(p-1)/p. So two dimensions win if
neither x nor w is much smaller than the other: they receive less than both of these from p = 4 N/O
or p = 4 O/N on, whichever is larger, and less than column + row from about p = 4.5 (K+O)O / (NK)
on.
"""

from collections.abc import Callable
from typing import NamedTuple

from nnmpi.addons.simulator.network import Record
from nnmpi.collectives.algorithms import ALGORITHMS, ALL_GATHERS, REDUCE_SCATTERS
from nnmpi.collectives.combine import within
from nnmpi.collectives.price import Network, price
from nnmpi.collectives.step import Algorithm

PANEL = 512
"""Columns of K in a panel: more take more memory, fewer make products less efficient."""


class Gemm(NamedTuple):
    """The sizes of a product x (N, K) by the transpose of w (O, K)."""

    rows: int
    inner: int
    columns: int


ALL_GATHER, REDUCE_SCATTER = ALL_GATHERS["ring"], REDUCE_SCATTERS["ring"]
ALL_REDUCE = ALGORITHMS["ring"]


class GridCollective(NamedTuple):
    """A collective that all rows (or columns) of a grid of ranks carry out together, `times` times.

    elements  number of elements of a rank's buffer
    ranks     number of ranks in a line, that is a row or column
    stride    distance between their rank numbers: 1 in a row
    """

    algorithm: Algorithm
    elements: float
    ranks: int
    stride: int = 1
    times: int = 1

    @property
    def messages(self) -> int:
        """The number of messages that a rank receives: one in each round."""
        return self.times * self.algorithm.rounds(self.ranks)

    @property
    def received(self) -> float:
        """The number of elements that a rank receives in this collective, over all its `times`."""
        passes = 2 if self.algorithm is ALL_REDUCE else 1  # rounds of an element in the ring
        return self.times * passes * self.elements * (self.ranks - 1) / self.ranks


class ProductPlan(NamedTuple):
    """A way to divide a matrix product among ranks, numbered by rows of their grid: what a rank
    does and has, in elements.

    collectives   the communication of all products
    operations    floating-point operations
    activations   the rank's part of the inputs and outputs
    panels        buffers for panels of x and w in 2-D
    """

    ranks: int
    collectives: tuple[GridCollective, ...]
    operations: float
    weight: float
    activations: float
    panels: float = 0

    @property
    def received(self) -> float:
        """The number of elements that a rank receives in all products, averaged over the ranks."""
        return sum(c.received for c in self.collectives)


def column(g: Gemm, p: int) -> ProductPlan:
    """A plan of a layer on p ranks: rows of w divided, columns of y gathered."""
    N, K, O = g
    collectives = (GridCollective(ALL_GATHER, N * O, p), GridCollective(ALL_REDUCE, N * K, p))
    return ProductPlan(p, collectives, 6 * N * K * O / p, O * K / p, N * K + N * O)


def row(g: Gemm, p: int) -> ProductPlan:
    """A plan of a layer on p ranks: x and w divided along K, partial y summed."""
    N, K, O = g
    collectives = (GridCollective(ALL_REDUCE, N * O, p), GridCollective(ALL_GATHER, N * K, p))
    return ProductPlan(p, collectives, 6 * N * K * O / p, O * K / p, N * K + N * O)


def column_row(g: Gemm, p: int) -> ProductPlan:
    """A plan of layers K -> O -> K on p ranks: activations between stay sharded."""
    N, K, O = g
    collectives = (GridCollective(ALL_REDUCE, N * K, p, times=2),)
    return ProductPlan(p, collectives, 12 * N * K * O / p, 2 * O * K / p, 2 * N * K + N * O / p)


def summa(g: Gemm, q: int, r: int, panel: int = PANEL) -> ProductPlan:
    """Returns the plan of one layer on a q x r grid of ranks, by SUMMA in panels of `panel` columns
    of K.

    For each of x and w, two messages and a gathered panel are in memory at once, and for each
    message the rank's own part that is to be added to it.
    """
    N, K, O = g
    n = -(-K // panel)
    x, w = N * K / q / n, O * K / r / n
    collectives = (
        GridCollective(ALL_GATHER, x, r, times=2 * n),
        GridCollective(REDUCE_SCATTER, x, r, times=n),
        GridCollective(ALL_GATHER, w, q, stride=r, times=2 * n),
        GridCollective(REDUCE_SCATTER, w, q, stride=r, times=n),
    )
    p, panels = q * r, 3 * (x + w) + 2 * (x / r + w / q)
    return ProductPlan(p, collectives, 6 * N * K * O / p, O * K / p, (N * K + N * O) / p, panels)


def summa_twice(g: Gemm, q: int, r: int, panel: int = PANEL) -> ProductPlan:
    """A plan of layers K -> O -> K on a q x r grid, by SUMMA in panels."""
    N, K, O = g
    first, second = summa(g, q, r, panel), summa(Gemm(N, O, K), q, r, panel)
    return first._replace(
        collectives=first.collectives + second.collectives,
        operations=2 * first.operations,
        weight=2 * first.weight,
        activations=(2 * N * K + N * O) / (q * r),
        panels=max(first.panels, second.panels),
    )


class PlanFamily(NamedTuple):
    """The ways to divide one part of a model, a layer or two, among ranks.

    lines   the plans on a line of p ranks, by name: functions of the product and p
    grid    the plan on a q x r grid: a function of the product, q, r and the columns of a panel
    """

    about: str
    lines: dict[str, Callable[[Gemm, int], ProductPlan]]
    grid: Callable[[Gemm, int, int, int], ProductPlan]


FAMILIES = {
    1: PlanFamily("one layer, K -> O", {"column": column, "row": row}, summa),
    2: PlanFamily("two layers, K -> O -> K", {"column + row": column_row}, summa_twice),
}
"""Families of plans by the number of layers."""


def plans(
    family: PlanFamily, g: Gemm, grids: list[tuple[int, int]], panel: int
) -> dict[str, ProductPlan]:
    """Returns, by name, the family's plans on a line of ranks, and on each of several grids of as
    many."""
    p = grids[0][0] * grids[0][1]
    lines = {name: make(g, p) for name, make in family.lines.items()}
    return lines | {f"2-D {q}x{r}": family.grid(g, q, r, panel) for q, r in grids}


def grids_of(p: int) -> list[tuple[int, int]]:
    """Returns all grids (rows, columns) of p ranks."""
    return [(q, p // q) for q in range(1, p + 1) if p % q == 0]


def cost(plan: ProductPlan, on: Network, flops: float, size: int) -> Record:
    """Returns a record with the seconds, messages and bytes of a rank, on average, if it does
    `flops` floating-point operations in a second, and an element has `size` bytes."""
    communication = 0.0
    for t in plan.collectives:
        algorithm = within(t.algorithm, t.ranks, t.stride)
        paid = price(algorithm, plan.ranks, t.elements * size, on)
        communication += t.times * paid.seconds
    computation = plan.operations / flops
    weight, activations, panels = plan.weight * size, plan.activations * size, plan.panels * size
    return {
        "seconds": communication + computation,  # without overlap
        "communication": communication,
        "computation": computation,
        "messages": sum(t.messages for t in plan.collectives),
        "received": plan.received * size,
        "weight": weight,
        "activations": activations,
        "panels": panels,
        "memory": 2 * (weight + activations) + panels,  # with the gradients of both
    }


MOST_RANKS = 1 << 20


def turning_point(family: PlanFamily, g: Gemm) -> int | None:
    """Returns the least power of two of ranks at which some 2-D grid receives less data than all
    1-D plans and the grids 1 x p and p x 1; None up to MOST_RANKS."""
    for k in range(2, MOST_RANKS.bit_length()):
        p = 1 << k
        grids = [family.grid(g, 1 << i, p >> i, g.inner) for i in range(k + 1)]
        flat = [make(g, p) for make in family.lines.values()] + [grids[0], grids[-1]]
        if min(x.received for x in grids[1:-1]) < min(x.received for x in flat):
            return p
    return None
