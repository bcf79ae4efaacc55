"""What happens between the graphs of a compiled step, and what of it is not in a graph."""

import gc
from collections.abc import Callable
from typing import Any
from weakref import WeakSet, ref

import numpy as np
import pytest
from helpers.device import DEVICE, needs_emulator

import nnmpi
from nnmpi import Tensor, nn, optim
from nnmpi.addons.compile import compiled
from nnmpi.addons.compile.step_state import StepState
from nnmpi.addons.cuda import step_graphs
from nnmpi.addons.cuda.capture import Capture
from nnmpi.arrays.backend import Backend
from nnmpi.arrays.kernels.epilogue import copied

pytestmark = needs_emulator

Step = Callable[..., Any]
LABELS = np.arange(8) % 3


def samples(*shape: int) -> Any:
    return DEVICE.asarray(np.random.default_rng(0).standard_normal(shape).astype("f"))


def values(model: nn.Module) -> list[bytes]:
    return [p.array.get().tobytes() for p in model.parameters()]


def test_labels_on_the_host_are_checked_beside_others_on_the_device() -> None:
    model, x = nn.Linear(6, 3).to("cuda"), samples(8, 6)

    def function(x: Any, y: Any, of_device: Any) -> Tensor:
        scores, loss_of = model(Tensor(x)), nn.functional.cross_entropy
        return loss_of(scores, y) + loss_of(scores, of_device)

    step = nnmpi.compile(function)
    for _ in range(3):
        step(x, LABELS, DEVICE.asarray(LABELS))
    assert step.replays == 2
    with pytest.raises(ValueError, match="labels from 7 to 7 for 3 classes"):
        step(x, LABELS * 0 + 7, DEVICE.asarray(LABELS))


@pytest.mark.parametrize("classes", [3, 10, 40])
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_labels_that_may_be_ignored_give_the_same_bits(reduction: str, classes: int) -> None:
    """A graph does not know which labels the step has moved to the device itself."""
    for n in (8, 9, 10, 100, 300, 1100):
        labels, found = np.arange(n) % classes, list[list[bytes]]()
        for y in (labels, DEVICE.asarray(labels)):
            x = Tensor(samples(n, classes), requires_grad=True)
            loss = nn.functional.cross_entropy(x, y, reduction=reduction)
            loss.sum().backward()
            assert x.grad is not None
            found.append([a.get().tobytes() for a in (loss.array, x.grad.array)])
        assert found[0] == found[1]


def test_constants_that_a_graph_reads_outlive_those_of_later_steps() -> None:
    def trained(compiled: Callable[[Step], Step]) -> list[bytes]:
        nnmpi.manual_seed(1)
        model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.AdaptiveAvgPool2d(3)).to("cuda")
        optimizer = optim.SGD(model.parameters(), lr=0.1)

        def function(x: Any) -> None:
            optimizer.zero_grad()
            model(Tensor(x)).square().mean().backward()
            optimizer.step()

        step, x = compiled(function), samples(2, 1, 9, 9)
        for _ in range(3):
            step(x)
        others = [copied(np.array([7.0 + k]), "float32", x) for k in range(600)]
        step(x)
        assert len(others) == 600  # they have taken what memory was free
        return values(model)

    assert trained(nnmpi.compile) == trained(lambda function: function)


def test_a_graph_contains_conversions_before_the_step_of_an_optimizer() -> None:
    def trained(is_compiled: bool) -> list[bytes]:
        nnmpi.manual_seed(1)
        model = nn.Linear(6, 3).to("cuda")
        optimizer = optim.SGD(model.parameters(), lr=0.1)

        def function(x: Any, y: Any) -> None:
            y = y.astype(np.int64)
            optimizer.step()
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(Tensor(x)), y).backward()

        step: Any = nnmpi.compile(function) if is_compiled else function
        for k in range(4):
            step(samples(8, 6), np.roll(LABELS, k).astype(np.int32))
        assert not is_compiled or step.replays == 2
        return values(model)

    assert trained(True) == trained(False)


def test_memory_is_freed_without_the_garbage_collector(monkeypatch: pytest.MonkeyPatch) -> None:
    """Arguments of a call, behind it; a graph, with the step."""
    captures, model = WeakSet[Capture](), nn.Linear(6, 3).to("cuda")

    class Noted(Capture):
        def __init__(self, on: Backend) -> None:
            super().__init__(on)
            captures.add(self)

    monkeypatch.setattr(step_graphs, "Capture", Noted)
    step, first = nnmpi.compile(lambda x: model(Tensor(x)).sum()), samples(8, 6)
    of_first = ref(first)
    gc.disable()
    try:
        step(first)
        del first
        step(samples(8, 6))
        assert len(captures) == 1
        assert of_first() is None
        del step
        assert not captures
    finally:
        gc.enable()


def test_a_model_that_moves_is_recorded_again_with_the_same_bits() -> None:
    """Its optimizer's state follows in the next step, between two copies of the state."""

    def trained(is_compiled: bool) -> list[bytes]:
        nnmpi.manual_seed(1)
        model = nn.Linear(6, 3)
        optimizer = optim.Adam(model.parameters())

        def function(x: Any) -> None:
            optimizer.zero_grad()
            model(Tensor(x)).square().mean().backward()
            optimizer.step()

        step: Any = nnmpi.compile(function) if is_compiled else function
        for device in ("cpu", "cuda", "cpu", "cuda"):
            model.to(device)
            for _ in range(3):
                step(samples(8, 6) if device == "cuda" else samples(8, 6).get())
        assert not is_compiled or step.replays == 7
        return values(model)

    assert trained(True) == trained(False)


def test_what_is_compared_is_copied_to_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    used, model = DEVICE.xp.get_default_memory_pool().used_bytes, nn.Linear(6, 3).to("cuda")
    more = list[int]()

    class Noted(StepState):
        def __init__(self, *args: Any) -> None:
            before = used()
            super().__init__(*args)
            more.append(used() - before)

    monkeypatch.setattr(compiled, "StepState", Noted)
    nnmpi.compile(lambda x: model(Tensor(x)).sum().backward())(samples(8, 6))
    assert more == [0, 0, 0]


def test_a_step_without_parameters_runs_as_written_on_the_device() -> None:
    step, x = nnmpi.compile(lambda x: x * 2), samples(2, 3)
    with pytest.warns(UserWarning, match="an argument is on a device, and no parameter is"):
        assert (step(x) == x * 2).all()
