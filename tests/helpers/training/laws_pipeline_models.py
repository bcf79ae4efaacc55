"""Laws of pipelines of unusual models: layers that are skipped, or used several times."""

from collections.abc import Callable
from functools import partial
from itertools import product

from helpers.sample import one_in
from helpers.training.pipelined import Options, equals, is_same, reference, run, trains_as_one_rank
from helpers.training.unusual_models import Residual

import nnmpi
from nnmpi import nn
from nnmpi.comm import Comm, launched


def any_model_recomputes_in_one_stage(comm: Comm) -> None:
    options: Options = {"micro_batches": 2, "optimizer": "sgd", "lr": 0.05}
    wanted, plain = reference(comm, build=Residual, **options), run(comm, Residual, **options)
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


MODELS = {name: partial(blocks, f) for name, f in BLOCKS.items()}


def outputs_in_any_memory_are_sent(comm: Comm) -> None:
    """Every layer begins a stage, and the last stages have several."""
    found = one_in(2, MODELS.items(), "memory") if comm.size in (3, 4) else ()
    schedules = ("gpipe", "zb-h1") if launched() == 1 else ("zb-h1",)
    for (name, build), schedule in product(found, schedules):
        begins = [1, 3] if name == "unused" else [*range(2, 6)]  # such a block is no layer
        if comm.size <= len(begins) + 1:
            cut = ",".join(map(str, begins[: comm.size - 1]))
            layout = {"pp": comm.size, "cut": cut, "schedule": schedule}
            trains_as_one_rank(layout, {"build": build, "micro_batches": 4}, comm)
