"""The laws of pipelines on ranks that are threads, and what a rank of a pipeline holds."""

import gc
import weakref
from collections.abc import Callable, Sequence
from contextlib import closing
from itertools import product
from typing import Any

import pytest
from helpers.training.laws_pipeline_models import Block
from helpers.training.pipelined import SCHEDULES, Options, digits, run

import nnmpi
from nnmpi import Config, Tensor, Trainer, nn
from nnmpi.comm import Comm
from nnmpi.comm import thread_ranks as threads
from nnmpi.io.output import NullReport
from nnmpi.parallel.step.channels import Outlet
from nnmpi.parallel.step.executor import StepState


def doubled(block: Block, x: Tensor) -> Tensor:
    return block.inner(nnmpi.concatenate([x, x], axis=1)[:, :20])


Change = Callable[[Block, Tensor], Tensor]
UNFIT: dict[str, tuple[Change, Change, str]] = {
    "narrow in training": (
        *(lambda block, x: block.inner(x)[:, :10] if block.training else block.inner(x), doubled),
        "the model has 1 layer .* its forward does not do the same .* in training and evaluation",
    ),
    "detached": (
        *(lambda block, x: x.detach(), doubled),
        "layer 2 .* no gradient flows from its output to its input",
    ),
    "detached before a layer": (
        *(lambda block, x: block.inner(x.detach()), doubled),
        "layer 2 .* no gradient flows from its output to its input",
    ),
}


@pytest.mark.parametrize("case", UNFIT.values(), ids=UNFIT)
def test_an_output_that_cannot_be_sent_is_refused(case: tuple[Change, Change, str]) -> None:
    """An array that is too short would leave the rest of a buffer as it was."""
    *changes, words = case

    def build() -> nn.Module:
        blocks = [Block(20, f) for f in changes]
        return nn.Sequential(nn.Flatten(), nn.Linear(64, 20), *blocks, nn.Linear(20, 10))

    def rank(comm: Comm) -> None:
        config = Config(pp=2, cut="3", micro_batches=4, batch_size=24)
        Trainer(config, build, digits(), comm).fit(NullReport())

    with pytest.raises(ValueError, match=words):
        threads.run(2, rank)


@pytest.mark.parametrize("layout", [{}, {"dp": 3}, {"pp": 2}], ids=str)
def test_what_runs_again_evaluates_to_the_same_bits(layout: Options) -> None:
    """By the same cut of test batches, whatever the schedule is."""

    def rank(comm: Comm) -> list[float]:
        cases = product(SCHEDULES[1:4], ("none", "stage"))
        by = [{"schedule": schedule, "recompute": again} for schedule, again in cases]
        case = {**layout, "model": "mlp:64-48-40-32-24-10", "micro_batches": 4, "dtype": "float32"}
        return [run(comm, epochs=1, **case, **each).done["test_loss"] for each in by]

    (losses, *_) = threads.run(layout.get("dp", 1) * layout.get("pp", 1), rank)
    assert len({*losses}) == 1


@pytest.mark.parametrize("recompute", ["none", "stage"])
def test_outputs_that_no_vjp_reads_are_released_when_they_are_sent(
    recompute: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """When the first backward pass begins, of four outputs only those on their way are there."""
    outputs, alive = list[weakref.ref[object]](), list[int]()
    put, seeds = Outlet.put, Outlet.seeds

    def putting(outlet: Outlet, micro: int, sent: Sequence[Any]) -> None:
        put(outlet, micro, sent)
        outputs.extend(weakref.ref(array) for _, array, _ in outlet._outgoing[micro])

    def seeding(outlet: Outlet, micro: int, sent: Sequence[Any]) -> object:
        gradients = seeds(outlet, micro, sent)
        outlet._sends.finish()
        gc.collect()
        alive.append(sum(output() is not None for output in outputs))
        return gradients

    monkeypatch.setattr(Outlet, "put", putting)
    monkeypatch.setattr(Outlet, "seeds", seeding)

    def rank(comm: Comm) -> None:
        options = {"schedule": "gpipe", "recompute": recompute, "batch_size": 24, "compile": False}
        config = Config(pp=2, cut="3", micro_batches=4, **options)
        layers = nn.Flatten(), nn.Linear(64, 20), nn.Linear(20, 20), nn.Linear(20, 10)
        with closing(Trainer(config, lambda: nn.Sequential(*layers), digits(), comm)) as trainer:
            next(trainer.strategy.steps(trainer.train, StepState()))

    threads.run(2, rank)
    assert len(outputs) == 4
    assert alive == [0] * 4
