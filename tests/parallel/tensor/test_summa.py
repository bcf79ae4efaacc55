"""SummaLinear: its laws on ranks that are threads, its panels and memory, and what it refuses."""

from collections.abc import Callable

import numpy as np
import pytest

import nnmpi
from nnmpi import nn
from nnmpi.autograd import apply
from nnmpi.autograd.check import directional_error
from nnmpi.comm import Comm
from nnmpi.comm import thread_ranks as threads
from nnmpi.parallel.standalone.summa import (
    Grid,
    SummaLinear,
    cut_into_panels,
    gather_blocks,
    scatter_blocks,
    summa_linear,
)

# ---- gradients


@pytest.mark.parametrize(("q", "r"), [(1, 2), (2, 2), (2, 3)])
def test_gradients_are_those_of_finite_differences(q: int, r: int) -> None:
    def error(comm: Comm) -> float:
        grid = Grid.of(comm, q, r)
        of_weight = Grid(grid.column, grid.row)  # its rows are cut along a row of ranks
        layer = SummaLinear(7, 5, grid, panel=4)
        sides = {"across": layer.across, "down": layer.down, "panels": layer.panels}

        def f(x: nnmpi.Tensor, w: nnmpi.Tensor) -> nnmpi.Tensor:
            block, part = scatter_blocks(x, grid), scatter_blocks(w, of_weight)
            return gather_blocks(apply(summa_linear, block, part, None, **sides), grid, (6, 5))

        rng = np.random.default_rng(0)
        return directional_error(f, rng.standard_normal((6, 7)), rng.standard_normal((5, 7)))

    assert max(threads.run(q * r, error)) < 1e-8


def test_halves_of_a_backward_pass_have_the_bits_of_one() -> None:
    def both(comm: Comm) -> None:
        grid = Grid.of(comm, 2, 2)
        model = nn.Sequential(SummaLinear(6, 8, grid), nn.ReLU(), SummaLinear(8, 4, grid))
        block = np.random.default_rng(comm.rank).standard_normal((3, 3)).astype(np.float32)
        grads = []
        for halves in (False, True):
            x = nnmpi.tensor(block, requires_grad=True)
            model.zero_grad()
            rest = model(x).backward(np.ones((3, 2)), until=x if halves else None)
            if rest is not None:
                assert not any(p.has_grad for p in model.parameters())
                rest.finish()
            grads.append([x.grad, *(p.grad.copy() for p in model.parameters())])
        for undivided, halved in zip(*grads, strict=True):
            np.testing.assert_array_equal(halved, undivided)

    threads.run(4, both)


def test_leading_axes_are_samples() -> None:
    def shapes(comm: Comm) -> tuple[int, ...]:
        layer = SummaLinear(4, 6, Grid.of(comm, 1, 2))
        x = nnmpi.tensor(np.ones((2, 5, 2)), dtype="float32", requires_grad=True)
        y = layer(x)
        y.sum().backward()
        assert x.grad is not None
        assert x.grad.shape == x.shape
        return y.shape

    assert threads.run(2, shapes) == [(2, 5, 3)] * 2


# ---- memory


def test_a_rank_has_its_share_of_the_weight_and_draws_no_more() -> None:
    def sizes(comm: Comm) -> list[tuple[int, ...]]:
        model = nn.Sequential(SummaLinear(9, 8, Grid.of(comm, 2, 3)))
        drawn: list[int] = []
        for p in model.parameters():
            init = p.init
            p.init = lambda key, index, init=init: drawn.append(index.size) or init(key, index)
        shapes = [p.data.shape for p in model.parameters()]
        assert drawn == [np.prod(shape) for shape in shapes]
        return shapes

    assert threads.run(6, sizes) == [
        [(o, k), (o,)] for k in (4, 5) for o in (2, 3, 3)
    ]  # 9 columns over the 2 rows of the grid, 8 rows over its 3 columns


@pytest.mark.parametrize(("size", "q", "r", "width"), [(12, 2, 3, 4), (11, 3, 2, 4), (5, 5, 1, 9)])
def test_panels_share_out_every_column_once_and_evenly(
    size: int, q: int, r: int, width: int
) -> None:
    panels = cut_into_panels(size, q, r, width)
    columns = [k for panel in panels for start, stop in panel for k in range(start, stop)]
    assert sorted(columns) == [*range(size)]
    assert len(panels) == -(-size // width)
    for panel in panels:
        inside = [k for start, stop in panel for k in range(start, stop)]
        assert inside == sorted(inside)
        for ranks in (q, r):  # of every rank, nearly the same number
            share = [sum(size * i // ranks <= k < size * (i + 1) // ranks for k in inside)
                     for i in range(ranks)]  # fmt: skip
            assert max(share) - min(share) <= q + r


# ---- what is refused


@pytest.mark.parametrize(
    ("use", "words"),
    [
        (lambda comm: Grid.of(comm, 2, 2), "2 x 2 grid has 4 ranks, not 2"),
        (lambda comm: Grid.of(comm, 0, 2), "0 x 2 grid"),
        (lambda comm: SummaLinear(1, 4, Grid.of(comm, 1, 2)), "1 inputs and 4 outputs"),
        (lambda comm: SummaLinear(4, 1, Grid.of(comm, 1, 2)), "too few for a 1 x 2 grid"),
        (lambda comm: SummaLinear(4, 4, Grid.of(comm, 1, 2), panel=0), "panel=0"),
        (
            lambda comm: SummaLinear(4, 4, Grid.of(comm, 1, 2))(nnmpi.tensor(np.ones((3, 4)))),
            r"\(3, 4\) for columns .* of 4: the last axis must be 2; scatter_blocks",
        ),
        (
            lambda comm: SummaLinear(4, 4, Grid.of(comm, 1, 2))(nnmpi.Tensor(np.ones((3, 2)))),
            "float64 input for float32 weights",
        ),
        (
            lambda comm: gather_blocks(nnmpi.tensor(np.ones((3, 2))), Grid.of(comm, 1, 2), (3, 2)),
            r"gather: input of shape \(3, 2\)",
        ),
        (lambda comm: scatter_blocks(np.ones(3), Grid.of(comm, 1, 2)), "must have 2 axes"),
    ],
)
def test_what_does_not_fit_is_refused(use: Callable[[Comm], object], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        threads.run(2, use)
