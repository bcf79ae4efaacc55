"""The ranks of benchmarks/sharding.py that use library layers: images cut by rows.

serve FOLDER              time tasks, as jobs.py says
rounds N SECONDS CASE...  seconds per step, in N interleaved rounds
count CASE...             bytes and messages that a rank sends in a step, and its memory
"""

import gc
import json
import tracemalloc
from collections.abc import Callable
from typing import NamedTuple, Self

import numpy as np

import nnmpi
from lib import ranks
from lib.ranks import Traffic, mean, no_shared_memory, peak_of_step, sent_by
from lib.workloads import CLASSES, Steps
from nnmpi import nn, optim
from nnmpi.arrays import blas
from nnmpi.comm import Comm, comm_self, world
from nnmpi.parallel.tensor.ops import all_reduce
from nnmpi.parallel.tensor.parallelize import parallelize


class LayerCase(NamedTuple):
    """What is computed, of which sizes, on how many ranks.

    sizes  (H, W) of an image
    """

    kind: str
    sizes: tuple[int, ...]
    ranks: int
    batch: int = 1  # which a job asks for
    least_steps: int = 1

    @property
    def text(self) -> str:
        """All of it, for a rank to read."""
        return json.dumps(self)

    @classmethod
    def of(cls, text: str) -> Self:
        """The inverse of `text`."""
        kind, sizes, *others = json.loads(text)
        return cls(kind, tuple(sizes), *others)

    @property
    def steps(self) -> Steps:
        """Runs a number of steps."""
        blas.tune()
        step = KINDS[self.kind](*self.sizes)

        def run(steps: int) -> None:
            for _ in range(steps):
                step()

        return run


class Counted(NamedTuple):
    """Of one rank: what it sends in a step, and the most memory that a step takes."""

    sent: Traffic
    peak: float


# ---- one large image


def cnn() -> nn.Sequential:
    """Three convolutions, of which two are pooled, and a classifier of the mean."""
    return nn.Sequential(
        *(nn.Conv2d(3, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(32, 64, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(64, 64, 3, padding=1), nn.ReLU()),
        *(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, CLASSES)),
    )


BY_ROWS = {"[0-8]": "spatial", "10": "copy"}
"""The ways of its layers: all before the classifier compute some rows."""


def image_step(comm: Comm, cut: bool, height: int, width: int) -> Callable[[], object]:
    """A training step on this rank's rows of one image of `height` rows."""
    model = cnn()
    draws = np.random.default_rng(0)
    x = draws.standard_normal((1, 3, height, width), dtype=np.float32)
    if cut:
        parallelize(model, comm, x, whole_output=True, ways=BY_ROWS)
    terms = [p for layer in model[:9] for p in layer.parameters()] if cut else []
    opt, loss_of = optim.Adam(model.parameters(), lr=1e-6), nn.CrossEntropyLoss()

    def step() -> None:
        loss = loss_of(model(nnmpi.tensor(x)), np.zeros(1, np.int64))
        opt.zero_grad()
        loss.backward()
        for p in terms:
            all_reduce(p.grad, comm, p.memory_axes)
        opt.step()
        loss.item()

    return step


KINDS: dict[str, Callable[..., Callable[[], object]]] = {
    "whole image": lambda h, w: image_step(comm_self(), False, h, w),
    "image in bands": lambda h, w: image_step(comm_self(), True, h, w),
    "image": lambda h, w: image_step(world(), True, h, w),
    "half an image": lambda h, w: image_step(comm_self(), True, h // 2, w),
}
"""An ordinary model on one rank; layers of rows on one rank, on all, and on half an image."""


def counted(text: str) -> Counted:
    """Memory is traced from before parameters and inputs are made."""
    with no_shared_memory():
        gc.collect()
        tracemalloc.start()
        run = LayerCase.of(text).steps
        peak = peak_of_step(run)
        tracemalloc.stop()
        return Counted(sent_by(run), *mean([peak]))


def main(*words: str) -> None:
    """Serve tasks, or answer one question."""
    ranks.answer({"count": counted}, lambda case, _: LayerCase.of(case).steps, *words)
