"""What SummaLinear has to keep on any grid of ranks: functions of a Comm."""

import hashlib
from collections.abc import Callable, Iterator

import numpy as np
from helpers.training.pipelined import same_on_all

import nnmpi
from nnmpi import nn, optim
from nnmpi.backend import CPU, Array, Backend, to_host
from nnmpi.comm import Comm
from nnmpi.parallel.standalone.summa import Grid, SummaLinear, gather_blocks, scatter_blocks

LAYER_BOUND = 1e-12  # in float64, of one layer
TRAINING_BOUND = 1e-10  # after ten steps
SIZES = ((24, 16, 32), (7, 11, 9), (1, 13, 8))  # N, K, O: even, uneven, and ranks without samples


def grids(comm: Comm) -> Iterator[Grid]:
    """Every grid of these ranks: 1 x 6, 2 x 3, 3 x 2 and 6 x 1 of six."""
    for q in range(1, comm.size + 1):
        if comm.size % q == 0:
            grid = Grid.of(comm, q, comm.size // q)
            yield grid
            grid.row.free()
            grid.column.free()


def difference(a: Array, b: Array) -> float:
    """Relative to the largest number of b."""
    return float(abs(a - b).max(initial=0) / max(abs(b).max(initial=0), 1e-300))


def stack(*layers: nn.Module) -> nn.Sequential:
    model = nn.Sequential(*layers)
    model.seed = 5
    model.to("float64")
    return model


def a_layer_equals_linear(comm: Comm) -> None:
    """Values and all gradients, whatever the panels."""
    for grid in grids(comm):
        for N, K, O in SIZES:
            for panel in (3, 512):
                layer_equals_linear(grid, (N, K, O), panel)


def layer_equals_linear(grid: Grid, size: tuple[int, int, int], panel: int) -> None:
    N, K, O = size
    rng = np.random.default_rng(1)
    values, g = rng.standard_normal((N, K)), rng.standard_normal((N, O))
    whole, sharded = stack(nn.Linear(K, O)), stack(SummaLinear(K, O, grid, panel=panel))
    x, x_of_ranks = (nnmpi.Tensor(values.copy(), requires_grad=True) for _ in range(2))
    y = whole(x)
    y_of_ranks = gather_blocks(sharded(scatter_blocks(x_of_ranks, grid)), grid, (N, O))
    y.backward(g)
    y_of_ranks.backward(g)
    assert difference(y_of_ranks.data, y.data) < LAYER_BOUND
    assert difference(x_of_ranks.grad, x.grad) < LAYER_BOUND
    for ours, one in zip(sharded.parameters(), whole.parameters(), strict=True):
        part = ours.place.slices
        assert ours.place.path == one.place.path
        np.testing.assert_array_equal(ours.data, one.data[part])  # drawn by part
        assert difference(ours.grad, one.grad[part]) < LAYER_BOUND


def a_stack_trains_as_one_rank(comm: Comm, on: Backend = CPU) -> None:
    """Ten steps of a loss, with uneven blocks; copies of a bias keep the same bits."""
    rng = np.random.default_rng(2)
    batches = [(rng.standard_normal((n, 19)), rng.integers(0, 10, n)) for n in (13, 12) * 5]
    whole = stack(nn.Linear(19, 23), nn.ReLU(), nn.Linear(23, 10))
    train(whole, batches, lambda x: whole(nnmpi.Tensor(x)))
    for grid in grids(comm):
        sharded = stack(
            SummaLinear(19, 23, grid, panel=8), nn.ReLU(), SummaLinear(23, 10, grid, panel=8)
        ).to(on=on)

        def logits(x: Array, grid: Grid = grid, model: nn.Module = sharded) -> nnmpi.Tensor:
            return gather_blocks(model(scatter_blocks(on.asarray(x), grid)), grid, (len(x), 10))

        train(sharded, batches, logits)
        for ours, one in zip(sharded.parameters(), whole.parameters(), strict=True):
            assert difference(to_host(ours.data), one.data[ours.place.slices]) < TRAINING_BOUND
        bits = hashlib.sha256(to_host(sharded[0].bias.data).tobytes()).hexdigest()
        assert same_on_all(grid.column, bits)


def train(
    model: nn.Module,
    batches: list[tuple[Array, Array]],
    logits: Callable[[Array], nnmpi.Tensor],
) -> None:
    optimizer = optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for x, labels in batches:
        model.zero_grad()
        nn.CrossEntropyLoss()(logits(x), labels).backward()
        optimizer.step()
