"""The key of a recorded pass: whatever decides which kernels a pass calls is part of it, in a
Trainer and in `nnmpi.compile`. Each row is a change between steps that one part of the key notices.
"""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from helpers.training.steps import bits, results

import nnmpi
from nnmpi import Config, Tensor, Trainer, nn, optim
from nnmpi.arrays.backend import Backend
from nnmpi.autograd.recording import op_types, recording
from nnmpi.comm import comm_self
from nnmpi.io.output import Event, NullReport
from nnmpi.nn.passes import key_of_context

rng = np.random.default_rng(0)
X, Y = rng.standard_normal((48, 6)).astype("float32"), np.arange(48) % 3
KEPT = list[Any]()


def layers() -> nn.Sequential:
    return nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Linear(8, 3))


def other_memory(model: Any) -> None:
    """The array keeps its memory, and the parameters get another one."""
    KEPT.append(model[0].weight.grad.numpy())
    model.zero_grad()


CHANGES: dict[str, Callable[[Any], object]] = {
    "autocast": lambda model: nnmpi.autocast("cpu", dtype="bfloat16").__enter__(),
    "a frozen parameter": lambda model: model[0].weight.requires_grad_(False),
    "the memory of parameters": other_memory,
    "an attribute": lambda model: setattr(model[1], "momentum", 0.5),
    "a mode": lambda model: model[1].eval(),
    "a buffer": lambda model: setattr(model[1], "running_mean", model[1].running_mean + 1),
}
"""Changes that a Trainer and a compiled step notice."""


class Changes:
    def __init__(self, change: Callable[[Any], object]) -> None:
        self._change, self.losses, self.model = change, list[float](), nn.Module()

    def on_step(self, trainer: Trainer, event: Event) -> None:
        self.losses.append(event["loss"])
        if event["step"] in (5, 8):  # another change may be needed to see the first
            self._change(trainer.model)


@pytest.fixture(autouse=True)
def _as_before() -> Any:
    yield
    as_at_first()


def as_at_first() -> None:
    op_types.set(None)
    recording.set(True)
    KEPT.clear()


def trained(change: Callable[[Any], object], compiled: bool | None) -> tuple[list[float], Any]:
    as_at_first()
    heard = Changes(change)
    config = Config(batch_size=16, epochs=4, seed=1, quiet=True, compile=compiled, optimizer="sgd")
    with Trainer(config, layers, (X, Y, X, Y), comm_self(), callbacks=[heard]) as trainer:
        trainer.fit(NullReport())
        state = {k: np.asarray(v).tobytes() for k, v in trainer.model.state_dict().items()}
    return heard.losses, state


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_a_trainer_notices(change: Callable[[Any], object]) -> None:
    assert trained(change, None) == trained(change, False)


def looped(change: Callable[[Any], object], compiled: bool) -> list[Any]:
    as_at_first()
    with nnmpi.seeded(1):
        model = layers()
    optimizer, criterion = optim.SGD(model.parameters(), lr=0.1), nn.CrossEntropyLoss()

    def step(x: Any, y: Any) -> Tensor:
        loss = criterion(model(Tensor(x)), y)
        loss.backward()
        optimizer.step()
        return loss

    run, found = nnmpi.compile(step) if compiled else step, list[Any]()
    for number in range(12):
        found.append((results(run(X[:16], Y[:16])), bits((step, [model], [optimizer]))))
        if number in (5, 8):
            change(model)
    assert not compiled or run.replays >= 3  # type: ignore[attr-defined]
    return found


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_a_compiled_step_notices(change: Callable[[Any], object]) -> None:
    assert looped(change, True) == looped(change, False)


def test_a_gradient_that_is_cleared_between_compiled_steps_is_noticed() -> None:
    assert looped(lambda model: model.zero_grad(), True) == looped(lambda m: m.zero_grad(), False)


def test_a_pass_without_gradients_is_another_one() -> None:
    model = layers()
    step = nnmpi.compile(lambda x: model(x).requires_grad)
    found = [step(Tensor(X)) for _ in range(2)]
    with nnmpi.no_grad():
        found += [step(Tensor(X)) for _ in range(2)]
    assert found == [True, True, False, False]


def test_a_trainer_does_not_train_where_autograd_is_off() -> None:
    def off(model: Any) -> None:
        recording.set(False)

    assert trained(off, None) == trained(off, False)


def test_tf32_is_part_of_the_key() -> None:
    settings = {"float32": "default"}
    gpu = Backend("cuda", SimpleNamespace(_core=SimpleNamespace(get_compute_type=settings.get)))
    first = key_of_context(gpu)
    settings["float32"] = "TF32"
    assert key_of_context(gpu) != first
