"""ZeRO where ranks use different parameters in a step, and where a rank has several stages."""

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
import pytest
from helpers.training.on_paper import arranged
from helpers.training.pipelined import digits

from nnmpi import Config, Tensor, Trainer, nn, optim
from nnmpi.comm import Comm
from nnmpi.comm import thread_ranks as threads
from nnmpi.nn.recompute import checkpoint
from nnmpi.parallel.arrangement.cluster import Cluster
from nnmpi.parallel.step_list.chain import chain_of
from nnmpi.parallel.step_list.values import value_slots


class Branching(nn.Module):
    """Uses two layers only for samples whose sum is above `edge`."""

    def __init__(self, edge: float, width: int) -> None:
        super().__init__()
        self.edge = edge
        self.a, self.b = nn.Linear(64, 32), nn.Linear(32, 10)
        self.up, self.down = nn.Linear(32, width), nn.Linear(width, 32)

    def forward(self, x: Tensor) -> Tensor:
        y = self.a(x.reshape(len(x), -1)).relu()
        if float(np.asarray(x.data).sum()) > self.edge:
            y = y + self.down(self.up(y))
        return self.b(y)


def digest(ranks: int, build: object, **options: object) -> str:
    """The digest of the parameters after a run, which is the same on all ranks."""

    def job(comm: Comm) -> str:
        how = {"batch_size": 16, "bucket_mb": 0.001, "allreduce": "ring", "quiet": True}
        config = Config(**how | options)  # type: ignore[arg-type]
        with Trainer(config, build, digits(), comm) as trainer:  # type: ignore[arg-type]
            return str(trainer.fit()["parameters_sha256"])  # whose report is priced

    found = {*threads.run(ranks, job)}
    assert len(found) == 1
    return found.pop()


class WithBuffer(Branching):
    """Is one node of the graph for another reason than its reading."""

    def __init__(self, edge: float, width: int) -> None:
        super().__init__(edge, width)
        self.register_buffer("seen", np.zeros(1, "float32"))


class WithConstant(Branching):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) + Tensor(np.ones(1, "float32"))


def hooked(edge: float, width: int) -> nn.Module:
    model = Branching(edge, width)
    model.register_forward_hook(lambda module, inputs, output: None)
    return model


@pytest.mark.parametrize("build", [WithBuffer, WithConstant, hooked])
def test_a_reason_may_hide_another(build: Callable[[float, int], nn.Module]) -> None:
    how = {"steps": 4, "dp": 2}
    wanted = digest(2, partial(build, 0, 64), **how, zero=1)
    assert digest(2, partial(build, 0, 64), **how, zero=3) == wanted


@pytest.mark.parametrize(("edge", "width"), [(-40, 32), (0, 32), (20, 32), (0, 64)])
@pytest.mark.parametrize("zero", [2, 3])
def test_ranks_may_take_different_branches(zero: int, edge: float, width: int) -> None:
    def build() -> nn.Module:
        return Branching(edge, width)

    how = {"steps": 4, "dp": 2}
    assert digest(2, build, **how, zero=zero) == digest(2, build, **how, zero=1)


def test_stages_of_a_rank_with_zero_3_are_priced_and_trained() -> None:
    how = {
        "model": "mlp:64-96-96-96-96-96-96-10",
        "cut": "2,4,6,8,10",
        "schedule": "interleaved",
        "virtual_stages": 2,
        "micro_batches": 7,
        "bucket_mb": 0.02,
        "pp": 3,
        "steps": 3,
    }
    assert digest(6, None, **how, dp=2, zero=3) == digest(6, None, **how, dp=2, zero=2)


class Residual(nn.Module):
    """A row of layers that run as one op, with a bucket that ends within."""

    def __init__(self) -> None:
        super().__init__()
        self.row = nn.Sequential(nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 16))

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = x + self.row(x)
        return y


def residual() -> nn.Module:
    parts = [Residual() for _ in range(5)]
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 16), *parts, nn.Linear(16, 10))


def test_layers_that_run_as_one_op_may_have_several_buckets() -> None:
    options = {"dtype": "float64", "steps": 4, "bucket_mb": 0.003}
    assert len({digest(2, residual, zero=zero, **options) for zero in range(4)}) == 1


class Again(nn.Module):
    """Blocks of which the first one runs twice, the second time as the last one."""

    def __init__(self) -> None:
        super().__init__()
        blocks = [[nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 16)] for _ in range(3)]
        self.first, self.h = nn.Linear(64, 16), nn.ModuleList(nn.Sequential(*b) for b in blocks)
        self.last = nn.Linear(16, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x.reshape(len(x), -1))
        for block in (*self.h, self.h[0]):
            x = block(x).relu()
        y: Tensor = self.last(x)
        return y


class ByHand(Again):
    """Calls its blocks by `checkpoint`."""

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x.reshape(len(x), -1))
        for block in (*self.h, self.h[0]):
            x = checkpoint(block, x).relu()
        y: Tensor = self.last(x)
        return y


@pytest.mark.parametrize(("build", "recompute"), [(Again, "block"), (ByHand, "none")])
def test_what_runs_again_finds_its_values(build: type[nn.Module], recompute: str) -> None:
    how = {"recompute": recompute, "steps": 4, "bucket_mb": 1e-6, "batch_size": 18}
    assert len({digest(2, build, zero=zero, **how) for zero in (0, 1, 2, 3)}) == 1


def test_what_runs_again_is_divided_into_units() -> None:
    how = {"recompute": "block", "zero": 3, "bucket_mb": 1e-6, "allreduce": "ring"}
    a = arranged(Cluster.on_paper(2), Again, digits, **how)
    units = chain_of(a, 0).units
    assert max(len(unit.buckets) for unit in units) <= 2
    assert sum(bool(unit.repeated) for unit in units) == 4
    assert len({*value_slots(a, chain_of(a, 0)).values()}) <= 6


class Looks(optim.SGD):
    """Reads gradients itself, which with ZeRO are shards of sums by then."""

    def step(self, *args: object, **options: object) -> None:
        for p in self.parameters:
            assert p.grad is not None
        super().step(*args, **options)  # type: ignore[arg-type]


def looks(named: Sequence[tuple[str, nn.Parameter]]) -> optim.Optimizer:
    return Looks([p for _, p in named], lr=0.1)


@pytest.mark.parametrize("zero", [1, 2, 3])
def test_an_update_cannot_read_whole_gradients(zero: int) -> None:
    def job(comm: Comm) -> None:
        config = Config(zero=zero, steps=1, batch_size=16, allreduce="ring", quiet=True)
        Trainer(config, residual, digits(), comm, optimizer=looks).fit()

    with pytest.raises(ValueError, match="after a step the gradient is sharded over 2 ranks"):
        threads.run(2, job)
