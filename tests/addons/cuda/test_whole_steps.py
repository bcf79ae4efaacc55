"""A Trainer's step on a GPU as one graph: forward and backward pass, the norm and the decision."""

from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from itertools import count
from typing import Any

import numpy as np
import pytest
from emulator import machine
from helpers.device import DEVICE, emulated, needs_emulator
from helpers.training.pipelined import digits

from nnmpi import Config, Tensor, Trainer, nn
from nnmpi.addons.cuda.deferred_steps import DeferredSteps
from nnmpi.addons.cuda.graphs import Graphs
from nnmpi.comm import comm_self
from nnmpi.data import Dataset
from nnmpi.parallel.step.executor import Executor, StepResult, StepState
from nnmpi.schedules.op import Op

pytestmark = needs_emulator


class Sometimes(nn.Module):
    """A model with a parameter that no pass uses."""

    def __init__(self) -> None:
        self.a, self.unused = nn.Linear(64, 10), nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.a(x.reshape(len(x), -1))


def mlp() -> nn.Module:
    layers = nn.Flatten(), nn.Linear(64, 16), nn.ReLU(), nn.Dropout(0.2), nn.Linear(16, 10)
    return nn.Sequential(*layers)


def steps(
    build: Any, state: list[bytes], data: Dataset | None = None, **options: Any
) -> Iterator[StepResult]:
    """The steps of an epoch; `state` gets the parameters at its end."""
    how = {"batch_size": 8, "epochs": 1, "clip_norm": 0.5, "optimizer": "adam", "device": "cuda"}
    loss = options.pop("loss", None)
    trainer = Trainer(Config(**how | options), build, data or digits(), comm_self(), loss=loss)
    trainer.model.train()
    yield from trainer.strategy.steps(trainer.train, StepState())
    state += [np.asarray(v.array.get()).tobytes() for v in trainer.model.parameters()]
    trainer.close()


def kinds(calls: list[tuple[str, str]]) -> Counter[str]:
    return Counter(kind for kind, _ in calls if kind in ("copy", "graph", "kernel", "library"))


def seen(build: Any, **options: Any) -> tuple[list[float], list[bytes], Counter[str]]:
    """(the losses, the parameters at the end, the calls of the fifth step by kind)"""
    losses, state, notes = list[float](), list[bytes](), list[Any]()
    each = steps(build, state, **options)
    for number in range(1 << 10):
        with machine.noting() as calls:
            result = next(each, None)
        if result is None:
            return losses, state, kinds(notes)
        losses.append(result.loss)
        notes = [*calls] if number == 4 else notes
    raise AssertionError("the epoch does not end")


@pytest.mark.parametrize("order", machine.ORDERS)
def test_a_step_is_one_graph_with_the_bits_of_the_tape(order: str) -> None:
    wanted = seen(mlp, compile=False)
    with emulated(order=order, seed=3):
        losses, state, calls = seen(mlp)
    assert (losses, state) == wanted[:2]
    # samples to the device and to the graph, labels and keys, the graph; the update; its outcome
    assert calls == {"copy": 4, "graph": 1, "kernel": 1}


def test_the_outcome_of_a_step_is_copied_before_the_next_graph_overwrites_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    wanted, read = seen(mlp, compile=False), DeferredSteps._read

    def behind_the_graph(self: DeferredSteps) -> None:
        DEVICE.xp.cuda.get_current_stream().synchronize()
        read(self)

    monkeypatch.setattr(DeferredSteps, "_read", behind_the_graph)
    with emulated(order="late"):
        assert seen(mlp)[:2] == wanted[:2]


def test_graphs_are_compared_with_the_tape_before_they_are_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Graphs of other gradients are refused, and the tape runs all steps."""
    wanted, write = seen(mlp, compile=False), Graphs._write_seeds
    monkeypatch.setattr(
        Graphs, "_write_seeds", lambda self, seeds: write(self, [2 * seed for seed in seeds])
    )
    losses, state, calls = seen(mlp)
    assert (losses, state) == wanted[:2]
    assert calls["graph"] == 0


def test_a_step_by_the_tape_between_graphs_decides_for_itself() -> None:
    """The labels of a batch need other kernels, since some are ignored."""
    data, y = digits(), digits().train.y.copy()
    y[40:44] = -100
    data = data._replace(train=data.train._replace(y=y))
    assert seen(mlp, data=data)[:2] == seen(mlp, data=data, compile=False)[:2]


def test_a_step_behind_an_interrupted_one_decides_for_itself(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It runs by the tape, since the model has changed."""

    backward = Executor._backward

    def losses(is_compiled: bool) -> list[float]:
        found, state, number = list[float](), StepState(), count()

        def interrupted(self: Executor, op: Op) -> Any:
            if next(number) == 6:
                raise KeyboardInterrupt
            return backward(self, op)

        monkeypatch.setattr(Executor, "_backward", interrupted)
        config = Config(batch_size=8, epochs=1, device="cuda", compile=is_compiled)
        with Trainer(config, mlp, digits(), comm_self()) as trainer:
            trainer.model.train()
            for _ in range(2):
                with suppress(KeyboardInterrupt):
                    for result in trainer.strategy.steps(trainer.train, state):
                        found.append(result.loss)
                        state = result.state
                trainer.model[3].p = 0.5
        return found

    assert losses(True) == losses(False)


@pytest.mark.parametrize(
    "loss",
    [
        # by autograd it gets labels on the device, which may be ignored, so it has other kernels
        nn.functional.cross_entropy,
        nn.CrossEntropyLoss(weight=np.linspace(0.5, 2.0, 10)),
        nn.CrossEntropyLoss(label_smoothing=0.1),
    ],
    ids=["a function", "class weights", "label smoothing"],
)
def test_a_graph_has_the_loss_as_by_autograd(loss: Any) -> None:
    *got, calls = seen(mlp, loss=loss, compile=True)
    assert calls["graph"] == 1
    assert tuple(got) == seen(mlp, loss=loss, compile=False)[:2]


@pytest.mark.parametrize(
    ("build", "options"),
    [(Sometimes, {"compile": True}), (mlp, {"micro_batches": 2}), (mlp, {"dtype": "float16"})],
    ids=["an unused parameter", "micro-batches", "a loss scale"],
)
def test_other_steps_are_a_graph_for_each_pass(build: Any, options: dict[str, Any]) -> None:
    wanted = seen(build, **options | {"compile": False})
    *got, calls = seen(build, **options)
    assert tuple(got) == wanted[:2]
    assert calls["graph"] == 2 * options.get("micro_batches", 1)
