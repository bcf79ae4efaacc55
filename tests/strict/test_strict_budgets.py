"""What a training step asks of a device: launches, copies, conversions, transfers and waits."""

from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any, NamedTuple

import numpy as np
import pytest
import strictarray
from helpers.device import DEVICE, IS_GPU
from helpers.kernels import fakecudnn

import nnmpi
from nnmpi import backend, nn
from nnmpi.autograd import Tensor, apply
from nnmpi.autograd.ops import losses
from nnmpi.comm import comm_self
from nnmpi.nn.gpt import GPT
from nnmpi.nn.models import cifar_cnn, mnist_cnn
from nnmpi.run.report import NullReport

pytestmark = [
    pytest.mark.skipif(IS_GPU, reason="only the stand-in counts"),
    pytest.mark.skipif(
        not hasattr(strictarray, "RawModule"), reason="no C compiler to run kernels in CUDA"
    ),
]


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
    "W1": Task(mnist_cnn, (4, 1, 28, 28)),
    "W4": Task(cifar_cnn, (2, 3, 32, 32)),
    "W5": Task(resnet, (2, 3, 8, 8)),
    "gpt:1": Task(lambda: GPT(1, 2, 16, 20, 12), (2, 12)),
    "gpt:2": Task(lambda: GPT(2, 2, 16, 20, 12), (2, 12)),
    "gpt:1, dropout": Task(lambda: GPT(1, 2, 16, 20, 12, 0.1), (2, 12)),
    "LSTM": Task(Words, (3, 5)),
}


class Budget(NamedTuple):
    """What a step takes at most; all but transfers and waits are launches, too."""

    launches: int
    copies: int
    conversions: int
    transfers: int
    waits: int


class Marks(NullReport):
    """A report that notes how much was counted by the time it hears of each step: one step late."""

    def __init__(self, *counts: strictarray.Count) -> None:
        super().__init__()
        self.counts, self.ends = counts, list[list[int]]()

    def progress(self, *_: Any) -> None:
        self.ends.append([count.total for count in self.counts])


def data(task: Task) -> tuple[np.ndarray, np.ndarray]:
    rng, shape = np.random.default_rng(0), (6 * task.shape[0], *task.shape[1:])
    if len(shape) == 2:
        return rng.integers(0, 20, shape), rng.integers(0, 20, shape)
    return rng.standard_normal(shape).astype("float32"), rng.integers(0, 10, shape[0])


def step_of(task: Task, dtype: str, monkeypatch: pytest.MonkeyPatch) -> tuple[Budget, list[str]]:
    """What the fourth step takes, and the names of its operations."""
    monkeypatch.setattr(backend, "get", lambda device: DEVICE)
    config = nnmpi.Config(steps=5, batch_size=task.shape[0], dtype=dtype, clip_norm=1.0)
    with ExitStack() as stack:
        stack.enter_context(fakecudnn.install(monkeypatch))
        work = stack.enter_context(strictarray.working())
        waits = stack.enter_context(strictarray.counting())
        marks = Marks(work, waits)
        every = data(task)
        trainer = nnmpi.Trainer(config, task.make, (*every, *every), comm_self())
        trainer.fit(marks)
    (work_from, waits_from), (work_to, waits_to) = marks.ends[1:3]
    found = strictarray.Work()
    found.names = work.names[work_from:work_to]
    budget = Budget(
        found.launches,
        found["copy"],
        found["conversion"],
        found["transfer"],
        waits_to - waits_from,
    )
    return budget, found.names


BUDGETS: dict[tuple[str, str], Budget] = {
    ("W1", "float32"): Budget(47, 7, 0, 2, 0),
    ("W1", "float16"): Budget(55, 12, 2, 2, 0),
    ("W4", "float32"): Budget(53, 11, 0, 2, 0),
    ("W4", "float16"): Budget(63, 17, 2, 2, 0),
    ("W5", "float32"): Budget(144, 28, 0, 4, 0),
    ("W5", "float16"): Budget(159, 41, 2, 4, 0),
    ("gpt:1", "float32"): Budget(84, 13, 0, 2, 0),
    ("gpt:1", "float16"): Budget(68, 9, 3, 2, 0),
    ("gpt:2", "float32"): Budget(141, 21, 0, 2, 0),
    ("gpt:2", "float16"): Budget(106, 13, 3, 2, 0),
    ("gpt:1, dropout", "float32"): Budget(241, 13, 8, 6, 0),
    ("gpt:1, dropout", "float16"): Budget(244, 20, 11, 6, 0),
    ("LSTM", "float32"): Budget(94, 33, 0, 2, 0),
    ("LSTM", "float16"): Budget(96, 33, 2, 2, 0),
}
"""By task and type of numbers."""


@pytest.mark.one_in(2)
@pytest.mark.parametrize(("name", "dtype"), BUDGETS)
def test_a_step_takes_no_more_than_its_budget(
    name: str, dtype: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    found, names = step_of(TASKS[name], dtype, monkeypatch)
    budget = BUDGETS[name, dtype]
    assert all(a <= b for a, b in zip(found, budget, strict=True)), (found, Counter(names))


@pytest.mark.parametrize("shape", [(6, 50), (2, 5, 7)])
def test_a_loss_that_ignores_labels_reads_scores_once(shape: tuple[int, ...]) -> None:
    rng, labels = np.random.default_rng(0), np.zeros((shape[0], *shape[2:]), int)
    labels.reshape(-1)[1] = -100
    z = Tensor(DEVICE.asarray(rng.standard_normal(shape).astype("float32")), requires_grad=True)
    y = DEVICE.asarray(labels)
    with strictarray.working() as work:
        apply(losses.weighted_cross_entropy, z, labels=y).backward()
    assert work.launches <= 17, work
