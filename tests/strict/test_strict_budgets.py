"""What a training step asks of a device: kernels, calls of libraries, copies, memory and waits."""

import gc
from collections import Counter
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest
from emulator import machine
from helpers.device import DEVICE, needs_emulator
from helpers.kernels import fakecudnn

import nnmpi
from nnmpi import nn
from nnmpi.arrays import backend
from nnmpi.arrays.backend import CPU, to_host
from nnmpi.autograd import Tensor, apply
from nnmpi.autograd.ops import losses
from nnmpi.comm import comm_self
from nnmpi.io.output import NullReport
from nnmpi.nn.models import mlp, mnist_cnn

pytestmark = needs_emulator


class Block(nn.Module):
    """ReLU(x + two 3x3 convolutions of x), which may halve the image."""

    def __init__(self, c: int, o: int, stride: int) -> None:
        self.body = nn.Sequential(
            *(nn.Conv2d(c, o, 3, stride, 1, bias=False), nn.BatchNorm2d(o), nn.ReLU()),
            *(nn.Conv2d(o, o, 3, padding=1, bias=False), nn.BatchNorm2d(o)),
        )
        self.skip = nn.Sequential()
        if stride > 1:
            self.skip = nn.Sequential(nn.Conv2d(c, o, 1, stride, bias=False), nn.BatchNorm2d(o))
        self.relu = nn.ReLU()

    def forward(self, x: Any) -> Any:
        return self.relu(self.body(x) + self.skip(x))


def resnet() -> nn.Module:
    """W5 of docs/benchmarks.md."""
    return nn.Sequential(
        *(nn.Conv2d(3, 32, 3, padding=1, bias=False), nn.BatchNorm2d(32), nn.ReLU()),
        *(Block(32, 32, 1), Block(32, 64, 2), Block(64, 128, 2)),
        *(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(128, 10)),
    )


class Words(nn.Module):
    """An embedding, an LSTM and scores of the next word."""

    def __init__(self) -> None:
        self.words, self.read, self.scores = (
            nn.Embedding(20, 8),
            nn.LSTM(8, 8, batch_first=True),
            nn.Linear(8, 20),
        )

    def forward(self, x: Any) -> Any:
        return self.scores(self.read(self.words(x))[0]).transpose(0, 2, 1)


class Task(NamedTuple):
    """A model, and the shape of a batch: of images, or of tokens."""

    make: Callable[[], nn.Module]
    shape: tuple[int, ...]


TASKS = {
    "mlp": Task(lambda: mlp(36, 16, 16, 10), (4, 1, 6, 6)),
    "W1": Task(mnist_cnn, (4, 1, 28, 28)),
    "W5": Task(resnet, (2, 3, 8, 8)),
    "gpt:1": Task(lambda: nn.GPT(1, 2, 16, 20, 12), (2, 12)),
    "gpt:2": Task(lambda: nn.GPT(2, 2, 16, 20, 12), (2, 12)),
    "gpt:1, dropout": Task(lambda: nn.GPT(1, 2, 16, 20, 12, 0.1), (2, 12)),
    "LSTM": Task(Words, (3, 5)),
}


class Budget(NamedTuple):
    """What a step takes at most; it allocates nothing, and waits for the step before it at most."""

    kernels: int
    library: int  # products, convolutions, attention, sums of CUB
    copies: int


class Marks(NullReport):
    """A report that reads the notes when it hears of each step: one step late."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[list[tuple[str, str]]] = []

    def progress(self, *_: Any) -> None:
        self.calls.append(machine.notes())


def data(task: Task) -> tuple[np.ndarray, np.ndarray]:
    rng, shape = np.random.default_rng(0), (6 * task.shape[0], *task.shape[1:])
    if len(shape) == 2:
        return rng.integers(0, 20, shape), rng.integers(0, 20, shape)
    return rng.standard_normal(shape).astype("float32"), rng.integers(0, 10, shape[0])


def step_of(task: Task, dtype: str, monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str]]:
    """What the fourth step calls."""
    gc.collect()  # memory of other tests that is freed in the step would be a call
    monkeypatch.setattr(backend, "get", lambda device: DEVICE)
    config = nnmpi.Config(steps=5, batch_size=task.shape[0], dtype=dtype, clip_norm=1.0)
    marks = Marks()
    with fakecudnn.install(monkeypatch), machine.noting():
        trainer = nnmpi.Trainer(config, task.make, (*data(task), *data(task)), comm_self())
        trainer.fit(marks)
    return marks.calls[2]


BUDGETS: dict[tuple[str, str], Budget] = {
    ("mlp", "float32"): Budget(14, 8, 9),
    ("mlp", "float16"): Budget(16, 8, 9),
    ("W1", "float32"): Budget(30, 14, 3),
    ("W1", "float16"): Budget(36, 14, 5),
    ("W5", "float32"): Budget(75, 31, 3),
    ("W5", "float16"): Budget(80, 31, 3),
    ("gpt:1", "float32"): Budget(61, 24, 11),
    ("gpt:1", "float16"): Budget(49, 18, 5),
    ("gpt:2", "float32"): Budget(102, 44, 15),
    ("gpt:2", "float16"): Budget(73, 32, 5),
    ("gpt:1, dropout", "float32"): Budget(218, 24, 15),
    ("gpt:1, dropout", "float16"): Budget(224, 31, 9),
    ("LSTM", "float32"): Budget(37, 17, 7),
    ("LSTM", "float16"): Budget(38, 17, 7),
}
"""By task and type of numbers."""


@pytest.mark.one_in(4)
@pytest.mark.parametrize(("name", "dtype"), BUDGETS)
def test_a_step_takes_no_more_than_its_budget(
    name: str, dtype: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = step_of(TASKS[name], dtype, monkeypatch)
    kinds = Counter(kind for kind, _ in calls)
    # where the device is late, CuPy's buffers of copies are under way for longer, and it pins more
    is_late = machine.of_environment().order != "eager"
    assert not {"malloc", "free", "wait", *["pin"] * (not is_late)} & kinds.keys(), Counter(calls)
    assert kinds["late wait"] <= 1
    taken = Budget(kinds["kernel"], kinds["library"], kinds["copy"])
    assert all(a <= b for a, b in zip(taken, BUDGETS[name, dtype], strict=True)), (taken, calls)


@pytest.mark.parametrize("ignored", [1, 14])
@pytest.mark.parametrize("shape", [(14, 50), (2, 5, 7)])
def test_a_loss_that_ignores_labels_reads_scores_once(shape: tuple[int, ...], ignored: int) -> None:
    rng, labels = np.random.default_rng(0), np.zeros((shape[0], *shape[2:]), int)
    labels.reshape(-1)[:ignored] = -100
    scores, found = rng.standard_normal(shape).astype("float32"), list[tuple[Any, Any]]()
    for on in (CPU, DEVICE):
        z = Tensor(on.asarray(scores), requires_grad=True)
        with machine.noting() as calls:
            y = apply(losses.weighted_cross_entropy, z, labels=on.asarray(labels))
            y.backward()
        found.append((y.numpy(), to_host(z.grad_array)))
    assert sum(kind in ("kernel", "library") for kind, _ in calls) <= 6, calls
    for here, there in zip(*found, strict=True):
        np.testing.assert_allclose(there, here, rtol=1e-5, atol=1e-7)
