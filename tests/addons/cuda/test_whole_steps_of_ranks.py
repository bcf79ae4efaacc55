"""Steps of several ranks, each with a GPU, as one graph a rank: sums by NCCL are a part of it."""

from collections import Counter
from typing import Any

import numpy as np
import pytest
from emulator import machine
from helpers.device import device_count, emulated, needs_emulator
from helpers.training.pipelined import digits

from nnmpi import Config, Trainer, nn
from nnmpi.addons.cuda.deferred_steps import StepTail
from nnmpi.comm import Comm
from nnmpi.comm import thread_ranks as threads
from nnmpi.data import Dataset
from nnmpi.parallel.step.executor import StepState

pytestmark = needs_emulator  # which has as many devices as there are ranks
ADAM = {"optimizer": "adam", "weight_decay": 0.01, "clip_norm": 0.5, "bucket_mb": 0.001}


def mlp() -> nn.Module:
    hidden = (nn.Linear(64, 32), nn.ReLU(), nn.Dropout(0.2)), (nn.Linear(32, 24), nn.Tanh())
    return nn.Sequential(nn.Flatten(), *hidden[0], *hidden[1], nn.Linear(24, 10))


def trained(comm: Comm, data: Dataset | None = None, **options: Any) -> tuple[Any, list[bytes]]:
    """(losses and norms of the steps of two epochs, the parameters at their end)"""
    config = Config(**{"batch_size": 12, "epochs": 2, "device": "cuda", **ADAM, **options})
    trainer, results = Trainer(config, mlp, data or digits(), comm), []
    trainer.model.train()
    for epoch in range(2):
        start = StepState(len(results), epoch)
        results += trainer.strategy.steps(trainer.train, start)
    state = [np.asarray(v.array.get()).tobytes() for v in trainer.model.parameters()]
    trainer.close()
    return [(r.loss, r.gradient_norm, r.updated, r.request) for r in results], state


def run(ranks: int = 2, **options: Any) -> tuple[Any, Counter[str]]:
    """(what each rank has trained; the graphs that they have launched or captured, and the sums
    outside of graphs, among all calls)"""
    with device_count(ranks), machine.noting() as calls:
        got = threads.run(ranks, lambda comm: trained(comm, **options))
    return got, Counter(name if kind == "library" else kind for kind, name in calls)


BESIDE, WHOLE, SUMS = 1, 13, 6
"""Of the steps of two epochs, those beside graphs of passes, and those that are one graph; the sums
of buckets on all ranks in a step."""


def step_graphs(whole: int, of_passes: int = BESIDE + 1) -> int:
    """The graphs of two ranks; those of passes are parts of a capture too."""
    return 2 * (whole + 2 * of_passes)


@pytest.mark.parametrize("order", machine.ORDERS)
def test_a_step_of_each_rank_is_one_graph_with_the_bits_of_the_tape(order: str) -> None:
    wanted, by_tape = run(compile=False)
    with emulated(order=order, seed=5):
        got, calls = run()
    assert got == wanted
    assert (calls["graph"], by_tape["graph"]) == (step_graphs(WHOLE), 0)
    assert by_tape["all-reduce"] - calls["all-reduce"] == SUMS * (WHOLE - 1)  # in the capture


def test_no_rank_launches_a_graph_where_another_one_has_none() -> None:
    """A label that is ignored needs other kernels, on the rank that has it."""
    whole = digits()
    labels = whole.train.y.copy()
    labels[40] = -100
    data = whole._replace(train=whole.train._replace(y=labels))
    wanted, by_tape = run(data=data, compile=False)
    got, calls = run(data=data)
    assert got == wanted
    assert by_tape["all-reduce"] - calls["all-reduce"] == SUMS * (WHOLE - 1 - 2)


def test_all_ranks_go_on_without_a_graph_that_one_cannot_capture(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    compute = StepTail.compute

    def cannot(self: StepTail, loss: Any) -> None:
        compute(self, loss)
        if self._store.dp.rank == 1:
            raise RuntimeError("no more memory")

    wanted, _ = run(compile=False)
    monkeypatch.setattr(StepTail, "compute", cannot)
    got, calls = run()
    assert got == wanted
    assert calls["graph"] == step_graphs(0, BESIDE + 1 + WHOLE)


@pytest.mark.parametrize(
    ("options", "graphs"),
    [
        ({"micro_batches": 2}, 2 * step_graphs(0, BESIDE + WHOLE)),
        ({"dtype": "float16"}, step_graphs(0, BESIDE + WHOLE)),
        ({"jitter": "0.1:1.5"}, 0),
    ],
    ids=str,
)
def test_other_steps_of_ranks_are_no_whole_graph(options: dict[str, Any], graphs: int) -> None:
    wanted, _ = run(**options, compile=False)
    got, calls = run(**options)
    assert (got, calls["graph"]) == (wanted, graphs)


def test_a_request_of_one_rank_is_known_to_all_in_one_step() -> None:
    def requests(comm: Comm) -> list[float]:
        trainer = Trainer(Config(**ADAM, batch_size=12, device="cuda"), mlp, digits(), comm)
        trainer.model.train()
        known = list[float]()
        for result in trainer.strategy.steps(trainer.train, StepState()):
            known.append(result.request)
            if len(known) == 6 and comm.rank:
                trainer.stop()
        trainer.close()
        return known

    with device_count(2):
        first, second = threads.run(2, requests)
    assert first == second == [0] * 7 + [1, 1]
