"""Laws of pipelines of unusual models: layers that are skipped, frozen or not finite."""

import functools
from collections.abc import Callable

import numpy as np
from helpers.training.laws_training import distance
from helpers.training.pipelined import BOUND, SCHEDULES, Options, equals, is_same, layouts, run

import nnmpi
from nnmpi import nn
from nnmpi.comm import Comm, comm_self
from nnmpi.nn.models import mlp
from nnmpi.nn.passes import current_pass


class Residual(nn.Module):
    """No Sequential, with a skip connection."""

    def __init__(self) -> None:
        self.first, self.norm = nn.Linear(64, 30, bias=False), nn.BatchNorm1d(30)
        self.drop, self.last = nn.Dropout(0.3), nn.Linear(30, 10)

    def forward(self, x: nnmpi.Tensor) -> nnmpi.Tensor:
        y = nnmpi.tanh(self.norm(self.first(x.reshape(len(x), 64))))
        scores: nnmpi.Tensor = self.last(self.drop(y) + y)
        return scores


def any_model_recomputes_in_one_stage(comm: Comm) -> None:
    options: Options = {"micro_batches": 2, "optimizer": "sgd", "lr": 0.05}
    wanted, plain = run(comm_self(), Residual, **options), run(comm, Residual, **options)
    for schedule in ("1f1b", "gpipe"):
        got = run(comm, Residual, **options, schedule=schedule, recompute=True)
        equals(comm, got, wanted)
        if schedule == "1f1b":
            is_same(got, plain)


class Block(nn.Module):
    """A trained layer of a width, and what is done with its output."""

    def __init__(self, width: int, f: Callable[["Block", nnmpi.Tensor], nnmpi.Tensor]) -> None:
        self.inner, self.f = nn.Linear(width, width), f

    def forward(self, x: nnmpi.Tensor) -> nnmpi.Tensor:
        return self.f(self, x)


def summed(x: nnmpi.Tensor) -> nnmpi.Tensor:
    return nnmpi.broadcast_to(x.sum(axis=1, keepdims=True), x.shape)


BLOCKS: dict[str, Callable[[Block, nnmpi.Tensor], nnmpi.Tensor]] = {
    "unused": lambda block, x: x,
    "skipped in evaluation": lambda block, x: block.inner(x) if block.training else x,
    "skipped in training": lambda block, x: x if block.training else block.inner(x),
    "backwards": lambda block, x: block.inner(x)[:, ::-1],
    "across": lambda block, x: nnmpi.concatenate([x, block.inner(x)]).T[:, : len(x)].T,
    "one number": lambda block, x: block.inner(x) + summed(x),
    "broadcast": lambda block, x: summed(block.inner(x)),
    "used three times": lambda block, x: block.inner(x) + x + x,
}
"""Outputs with any strides, and outputs that are the input itself."""


def blocks(f: Callable[[Block, nnmpi.Tensor], nnmpi.Tensor]) -> nn.Sequential:
    narrow = [nn.Linear(64, 20), Block(20, f), nn.Sequential(Block(20, f), nn.Tanh())]
    return nn.Sequential(nn.Flatten(), Block(64, f), *narrow, nn.Linear(20, 10))


def outputs_in_any_memory_are_sent(comm: Comm) -> None:
    """Every layer begins a stage, and the last stages have several."""
    for name, f in BLOCKS.items() if 1 < comm.size < 6 else ():
        begins = [1, 3] if name == "unused" else [*range(2, 6)]  # such a block is no layer
        if comm.size > len(begins) + 1:
            continue
        layout = {"pp": comm.size, "cut": ",".join(map(str, begins[: comm.size - 1]))}
        build = functools.partial(blocks, f)
        wanted = run(comm_self(), build, micro_batches=4)
        for schedule in ("gpipe", "zb-h1"):
            got = run(comm, build, micro_batches=4, **layout, schedule=schedule)
            assert distance({**got.state}, {**wanted.state}) < BOUND, name
            equals(comm, got, wanted)


def frozen() -> nn.Sequential:
    """Its first layers are not trained, nor is one in the middle."""
    widths = (64, 30, 28, 26, 24, 22, 20, 18, 16, 14, 12, 10)
    model = mlp(*widths)
    for k in (1, 3, 7):
        for p in model[k].parameters():
            p.requires_grad = False
    return model


def frozen_layers_stay(comm: Comm) -> None:
    wanted = run(comm_self(), frozen, micro_batches=2, weight_decay=0.1)
    for schedule in ("1f1b", "zb-h1"):
        for layout in layouts(comm):
            got = run(comm, frozen, micro_batches=2, weight_decay=0.1, **layout, schedule=schedule)
            equals(comm, got, wanted)
            fresh = frozen().to("float64").state_dict()
            assert (got.state["3.weight"] == fresh["3.weight"]).all()


SPOILT = 50  # a row of the training samples; there are fewer for testing


class OneRoot(nn.Module):
    """One sample has a finite output, and a gradient that is no number."""

    def __init__(self) -> None:
        self.scale = nn.Parameter(np.ones(1, np.float32))

    def forward(self, x: nnmpi.Tensor) -> nnmpi.Tensor:
        now = current_pass.get()
        rows = np.zeros(len(x)) if now is None or now.samples is None else now.samples
        far = np.where(rows == SPOILT, 0, 1)[:, None].astype(x.dtype)
        return x + nnmpi.sqrt(nnmpi.tensor(far) * nnmpi.absolute(self.scale))


def spoilt() -> nn.Sequential:
    wide = [layer for k in range(8) for layer in (nn.Linear(20, 20), nn.Tanh())]
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 20), *wide, OneRoot(), nn.Linear(20, 10))


def a_step_that_is_not_finite_is_left_out_by_all(comm: Comm) -> None:
    """One sample of one stage spoils one step of each epoch."""
    wanted = run(comm_self(), spoilt, micro_batches=3)
    assert wanted.done["skipped_steps"] == 2
    for schedule in SCHEDULES:
        for layout in layouts(comm):
            if layout["pp"] * 2 <= 8:
                got = run(comm, spoilt, micro_batches=3, **layout, schedule=schedule)
                equals(comm, got, wanted)
