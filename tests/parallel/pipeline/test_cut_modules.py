"""Attributes of modules that are cut among stages: what a callback sets counts in the next pass."""

from collections.abc import Callable
from typing import Any

import pytest
from helpers.training.pipelined import digits

from nnmpi import Config, Tensor, Trainer, nn
from nnmpi.comm import Comm
from nnmpi.comm import thread_ranks as threads
from nnmpi.io.output import Event, NullReport

OPTIONS: dict[str, Any] = {"batch_size": 24, "steps": 4, "lr": 0.05, "optimizer": "sgd"}


class Inner(nn.Module):
    """A module whose forward reads attributes: numbers and a flag."""

    def __init__(self) -> None:
        self.a, self.b = nn.Linear(32, 32), nn.Linear(32, 32)
        self.scale, self.doubles, self.factor = 1.0, False, 2.0
        self.drop = nn.Dropout(0.0)

    def forward(self, x: Tensor) -> Tensor:
        y = self.drop(nn.functional.relu(self.a(x)) * self.scale) * getattr(self, "factor", 1.0)
        return self.b(y + y if self.doubles else y)


class Model(nn.Module):
    def __init__(self) -> None:
        self.first, self.inner, self.last = nn.Linear(64, 32), Inner(), nn.Linear(32, 10)
        self.shift = 0

    def forward(self, x: Tensor) -> Tensor:
        y = self.inner(self.first(x.reshape(len(x), 64)) - self.shift)
        return self.last(y * self.inner.scale)


class Sets:
    """A callback that calls a function with the model and the number of each step."""

    def __init__(self, change: Callable[[Model, int], object]) -> None:
        self.losses, self._change = list[float](), change

    def on_step(self, trainer: Trainer, event: Event) -> None:
        self.losses.append(event["loss"])
        self._change(trainer.model, event["step"])


def losses_of(comm: Comm, change: Callable[[Model, int], object], **layout: Any) -> list[float]:
    """The loss of each step and of evaluations, where a callback changes the model."""
    heard = Sets(change)
    config = Config(**OPTIONS, dtype="float64", **layout)
    with Trainer(config, Model, digits(), comm, callbacks=[heard]) as trainer:
        trainer.fit(NullReport())
        change(trainer.model, 7)
        return [*heard.losses, trainer.evaluate()[0]]


def drop(model: Model, step: int) -> None:
    model.inner.drop.p = 0.1 * step


def forget(model: Model, step: int) -> None:
    if "factor" in vars(model.inner):
        del model.inner.factor


def rescale(model: Model, step: int) -> None:
    model.inner.scale, model.shift = 1.0 + step / 4, step


CUT: dict[str, Any] = {"pp": 2, "cut": "2"}


@pytest.mark.parametrize(
    ("change", "ranks", "layout"),
    [
        (rescale, 2, CUT),
        (rescale, 2, {**CUT, "compile": True}),
        (rescale, 2, {"pp": 2, "cut": "3", "micro_batches": 3, "recompute": "stage"}),
        (rescale, 2, {"pp": 2, "schedule": "interleaved", "micro_batches": 2}),
        (rescale, 3, {"pp": 3, "micro_batches": 3, "schedule": "zb-h1"}),
        (rescale, 4, {"pp": 2, "tp": 2, "micro_batches": 2}),
        (drop, 2, CUT),  # a layer that did nothing begins to do something
        (forget, 2, CUT),
    ],
    ids=lambda value: getattr(value, "__name__", str(value)),
)
def test_stages_use_attributes_as_they_are(
    change: Callable[[Model, int], object], ranks: int, layout: dict[str, Any]
) -> None:
    expected = threads.run(1, losses_of, change)[0]
    for losses in threads.run(ranks, lambda comm: losses_of(comm, change, **layout)):
        assert losses == pytest.approx(expected, rel=1e-10)


REFUSED: dict[str, Callable[[Model], object]] = {
    r"set since the start \(inner.doubles\) the model makes": (
        lambda model: setattr(model.inner, "doubles", True)
    ),
    r"inner \(Inner\) has got another layer or parameter": (
        lambda model: setattr(model.inner, "drop", nn.Dropout(0.5))
    ),
    r"inner \(Inner\) has got a hook, but pipeline stages": (
        lambda model: model.inner.register_forward_hook(lambda module, inputs, output: output)
    ),
}


@pytest.mark.parametrize("words", REFUSED)
def test_changes_that_a_cut_module_cannot_take_are_refused(words: str) -> None:
    with pytest.raises(ValueError, match=words):
        threads.run(2, lambda comm: losses_of(comm, lambda m, step: REFUSED[words](m), **CUT))
