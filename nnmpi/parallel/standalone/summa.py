"""SummaLinear: a linear layer whose input, weight and output are blocks on a q x r grid of ranks.

Rank (i, j) is in row i and column j of the grid. It has 1 / (q r) of each matrix:

    x    (N, K)    part i of q of the rows, part j of r of the columns
    w    (O, K)    part j of r of the rows, part i of q of the columns
    y    (N, O)    part i of q of the rows, part j of r of the columns: the x of the next layer

Each product is computed panel by panel, as in SUMMA (van de Geijn and Watts, 1997). A panel P is a
part of K, for which a rank needs its own rows of x[:, P] and of w[:, P]:

    y        +=  x[:, P] w[:, P].T    x is gathered along the row, w along the column
    dx[:, P]  =  g w[:, P]            w is gathered along the column, sums go along the row
    dw[:, P]  =  g.T x[:, P]          x is gathered along the row, sums go along the column

In the paper a panel is columns of one rank, which broadcasts them. Here it has columns of every
rank (`cut_into_panels`): all ranks of a row or column broadcast at once, which is an all-gather,
and no link is idle. The sums go back by a reduce-scatter. While a panel is used, the next travels.
"""

from collections.abc import Iterator, Sequence
from itertools import accumulate, pairwise, starmap
from typing import NamedTuple, Self, TypeAlias, TypeVar

from nnmpi.autograd import Tensor, apply, as_tensor
from nnmpi.autograd.ops.linear import check_dtype
from nnmpi.backend import Array, xp_of
from nnmpi.collectives.step import bounds, chunk_start
from nnmpi.comm import Comm
from nnmpi.kernels import Result, column_sum
from nnmpi.nn import Linear, Module, init
from nnmpi.nn.parameter import Parameter
from nnmpi.nn.place import Place
from nnmpi.parallel.tensor import ops
from nnmpi.parallel.tensor.ops import Bounds, all_reduce
from nnmpi.parallel.wire import Transfer, wire_for

PANEL = 512
"""Columns in a panel: more need more memory, fewer make the products less efficient."""

T = TypeVar("T")
Panel: TypeAlias = tuple[tuple[int, int], ...]
"""(start, stop) of stretches of K, in order; each is on one rank of a row and one of a column."""


class Grid(NamedTuple):
    """A q x r grid of ranks: this rank is (column.rank, row.rank)."""

    row: Comm  # the r ranks of this rank's row
    column: Comm  # the q ranks of this rank's column

    @classmethod
    def of(cls, comm: Comm, q: int, r: int) -> Self:
        """The grid of all ranks of `comm`, row by row; every rank calls it."""
        if min(q, r) < 1 or q * r != comm.size:
            raise ValueError(
                f"a {q} x {r} grid has {q * r} ranks, not {comm.size}: take two numbers of which "
                f"{comm.size} is the product"
            )
        row, column = comm.split(comm.rank // r), comm.split(comm.rank % r)
        assert row is not None
        assert column is not None
        return cls(row, column)

    def bounds(self, shape: tuple[int, ...]) -> tuple[Bounds, Bounds]:
        """Where the rows and the columns of x or y are cut."""
        return bounds(shape[0], self.column.size), bounds(shape[1], self.row.size)


def cut_into_panels(size: int, q: int, r: int, width: int) -> list[Panel]:
    """K = 0 ... size - 1 in panels of about `width`, each with an equal share of every rank's part.

    K is cut in r parts along a row (of x) and in q along a column (of w). Between two neighbouring
    cuts of either kind K is on one rank of each, and every panel takes a stretch of it.
    """
    edges = sorted({*bounds(size, q), *bounds(size, r)})
    n = max(1, -(-size // width))
    return [
        tuple(
            (a + chunk_start(b - a, n, s), a + chunk_start(b - a, n, s + 1))
            for a, b in pairwise(edges)
        )
        for s in range(n)
    ]


class Line(NamedTuple):
    """A line of the grid: the ranks of a row or of a column, over which K is cut at `bounds`.

    A `block` is a matrix (M, K) of which this rank has its columns. What travels is a matrix
    (M, w) for each rank, one after the other: so the parts of the ranks are contiguous.
    """

    comm: Comm
    bounds: Bounds

    def start_gather(self, block: Array, panel: Panel) -> tuple[list[Array], Transfer]:
        """Starts to gather block[:, panel]: one matrix a rank, in the order of their columns."""
        sent, parts, lengths = self._message(panel, block)
        for there, here in self._stretches(panel):
            parts[self.comm.rank][:, there] = block[:, here]
        return parts, wire_for(self.comm, sent).start_all_gather(sent, "ring", lengths)

    def add_up(self, block: Array, panels: Sequence[Panel], partial: Iterator[Array]) -> Array:
        """Fills block[:, panel] with the sum of the ranks' `partial`, panel by panel."""

        def start(panel: Panel, array: Array) -> tuple[Panel, Array, Transfer]:
            sent, parts, lengths = self._message(panel, block)
            at = 0
            for part in parts:
                part[...] = array[:, at : at + part.shape[1]]
                at += part.shape[1]
            work = wire_for(self.comm, sent).start_reduce_scatter(sent, "ring", lengths)
            return panel, parts[self.comm.rank], work

        def finish(panel: Panel, total: Array, work: Transfer) -> None:
            work.wait()
            for there, here in self._stretches(panel):
                block[:, here] = total[:, there]

        for _ in starmap(finish, one_behind(map(start, panels, partial))):
            pass
        return block

    def _message(self, panel: Panel, block: Array) -> tuple[Array, list[Array], list[int]]:
        """Memory for a panel; the matrix of each rank in it, (M, w); their sizes."""
        M = len(block)
        widths = [
            sum(stop - start for start, stop in panel if lo <= start < hi)
            for lo, hi in pairwise(self.bounds)
        ]
        sizes = [M * w for w in widths]
        memory = xp_of(block).empty(sum(sizes), block.dtype)
        ends = pairwise(accumulate(sizes, initial=0))
        parts = [memory[a:b].reshape(M, w) for (a, b), w in zip(ends, widths, strict=True)]
        return memory, parts, sizes

    def _stretches(self, panel: Panel) -> Iterator[tuple[slice, slice]]:
        """Where this rank's stretches of K are: in its part of the panel, and in its block."""
        lo, hi = self.bounds[self.comm.rank : self.comm.rank + 2]
        at = 0
        for start, stop in panel:
            if lo <= start < hi:
                yield slice(at, at + stop - start), slice(start - lo, stop - lo)
                at += stop - start


def one_behind(items: Iterator[T]) -> Iterator[T]:
    """Each item after the next one was made: while the caller uses one, the next one travels."""
    last = next(items)
    for item in items:
        yield last
        last = item
    yield last


def gathered(panels: Sequence[Panel], *blocks: tuple[Line, Array]) -> Iterator[tuple[Array, ...]]:
    """The matrices of each panel, of all ranks of a line, for each block and its line.

    Neither this nor `add_up` holds a matrix that it has handed over: maps, unlike loops, do not.
    """

    def start(panel: Panel) -> list[tuple[list[Array], Transfer]]:
        return [line.start_gather(block, panel) for line, block in blocks]

    def finish(started: list[tuple[list[Array], Transfer]]) -> tuple[Array, ...]:
        for _, work in started:
            work.wait()
        return tuple(xp_of(parts[0]).concatenate(parts, axis=1) for parts, _ in started)

    return map(finish, one_behind(map(start, panels)))


def summa_linear(
    x: Array,
    w: Array,
    b: Array | None,
    *,
    across: Line,
    down: Line,
    panels: Sequence[Panel],
    relu: bool = False,
) -> Result:
    """x (..., K) @ w (O, K).T + b (O), then ReLU if `relu`, of blocks.

    K of x is cut `across` a row of ranks, that of w `down` a column.
    """
    xp, rows = xp_of(x), x.reshape(-1, x.shape[-1])
    y = xp.zeros((len(rows), len(w)), x.dtype)
    for X, W in gathered(panels, (across, rows), (down, w)):
        y += xp.dot(X, W.T)
        del X, W  # before the next ones are put together
    if b is not None:
        y += b
    if relu:
        xp.maximum(y, 0, out=y)

    shape, passed = y.shape, y if relu else None  # y itself is kept for ReLU only

    def prepare(g: Array, needs: Sequence[bool]) -> Array:
        g = g.reshape(shape)
        return g if passed is None else g * (passed > 0)

    def vjp_x(g: Array, out: Array | None) -> Array:
        partial = starmap(lambda W: xp.dot(g, W), gathered(panels, (down, w)))
        return across.add_up(xp.empty_like(rows), panels, partial).reshape(x.shape)

    def vjp_w(g: Array, out: Array | None) -> Array:
        partial = starmap(lambda X: xp.dot(g.T, X), gathered(panels, (across, rows)))
        return down.add_up(xp.empty_like(w) if out is None else out, panels, partial)

    def vjp_b(g: Array, out: Array | None) -> Array:
        total = column_sum(g, out)
        all_reduce(total, down.comm)
        return total

    return Result(y.reshape(*x.shape[:-1], len(w)), (vjp_x, vjp_w, vjp_b), prepare)


class SummaLinear(Module):
    """y = x @ weight.T + bias, of which each rank of a q x r grid has blocks (see this file).

    The weights are those of a Linear of the same path and seed. Input, weight and output may be
    cut unevenly. Ranks of a column have copies of the bias (out_features / r).

    panel    columns of K that are gathered at a time
    """

    fuses_as = Linear

    def __init__(
        self,
        in_features: int,
        out_features: int,
        grid: Grid,
        bias: bool = True,
        *,
        panel: int = PANEL,
    ) -> None:
        q, r = grid.column.size, grid.row.size
        if in_features < max(q, r) or out_features < r:
            raise ValueError(
                f"SummaLinear: {in_features} inputs and {out_features} outputs are too few for a "
                f"{q} x {r} grid: each rank needs one of each; take a smaller grid"
            )
        if panel < 1:
            raise ValueError(f"SummaLinear: panel={panel} must be at least 1")
        self.in_features, self.out_features, self.grid = in_features, out_features, grid
        self.across = Line(grid.row, bounds(in_features, r))
        self.down = Line(grid.column, bounds(in_features, q))
        self.panels = cut_into_panels(in_features, q, r, panel)
        drawn = init.fan_in(in_features)
        outputs, inputs = grid.row.chunk(out_features), grid.column.chunk(in_features)
        part = ((outputs.start, outputs.stop), (inputs.start, inputs.stop))
        weight = Place("", (out_features, in_features), part)
        self.weight = Parameter.drawn(weight, drawn)
        self.bias = Parameter.drawn(Place("", (out_features,), part[:1]), drawn) if bias else None

    def forward(self, x: Tensor, relu: bool = False) -> Tensor:
        """x (..., K / r): this rank's block (`scatter_blocks`); `relu` applies ReLU too."""
        x = as_tensor(x)
        mine = self.grid.row.chunk(self.in_features)
        if x.ndim == 0 or x.shape[-1] != mine.stop - mine.start:
            raise ValueError(
                f"SummaLinear: input of shape {x.shape} for columns {mine.start} to "
                f"{mine.stop - 1} of {self.in_features}: the last axis must be "
                f"{mine.stop - mine.start}; scatter_blocks gives each rank its block"
            )
        check_dtype("SummaLinear", x.dtype, self.weight)
        sides = {"across": self.across, "down": self.down, "panels": self.panels}
        return apply(summa_linear, x, self.weight, self.bias, **sides, relu=relu)

    def extra_repr(self) -> str:
        q, r = self.grid.column.size, self.grid.row.size
        return f"{self.in_features}, {self.out_features}, {q} x {r}, bias={self.bias is not None}"


def scatter_blocks(x: Tensor | Array, grid: Grid) -> Tensor:
    """This rank's block of x (N, K), which all ranks have whole."""
    x = as_tensor(x)
    if x.ndim != 2:
        raise ValueError(f"scatter_blocks: input of shape {x.shape} must have 2 axes: reshape it")
    rows, columns = grid.bounds(x.shape)
    return ops.scatter(ops.scatter(x, grid.column, rows, 0), grid.row, columns, 1)


def gather_blocks(y: Tensor, grid: Grid, shape: tuple[int, int]) -> Tensor:
    """The whole matrix, on all ranks, from the block of each."""
    rows, columns = grid.bounds(shape)
    return ops.gather(ops.gather(y, grid.row, columns, 1), grid.column, rows, 0)
