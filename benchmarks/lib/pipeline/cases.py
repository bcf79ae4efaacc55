"""The models and the training runs of benchmarks/pipeline.py.

The halves of `mlp` and `cnn` cost the same: all layers but the first and the last are alike. The
first needs no gradient of its input and the last has few outputs, so both cost next to nothing.
"""

import json
from collections.abc import Callable
from typing import NamedTuple, Self

import numpy as np

import nnmpi
from lib.workloads import CLASSES, Steps, random_trainer, trainer_steps
from nnmpi import blas, nn
from nnmpi.comm import Comm, comm_self, world
from nnmpi.config import Config
from nnmpi.nn import models
from nnmpi.nn.graph import Graph
from nnmpi.nn.tracing import trace
from nnmpi.parallel.step.executor import StepState

BATCHES = 4  # which are made once and used in turn
PIPEDREAM_STEPS = 4
"""Steps between two drains of pipedream's pipeline, which has one epoch of them."""


class Model(NamedTuple):
    """A model, the shape of its samples, and how many of them a micro-batch has."""

    text: str
    build: Callable[[], nn.Module]
    shape: tuple[int, ...]
    samples: int


def graph_of(model: Model) -> tuple[nn.Module, Graph]:
    """The model, and what it computes of its samples."""

    def samples(n: int) -> tuple[tuple[nnmpi.Tensor], dict[str, nnmpi.Tensor]]:
        return (nnmpi.tensor(np.zeros((n, *model.shape), np.float32)),), {}

    made = model.build()
    return made, trace(made, samples, "float32")


def mlp(features: int, width: int, depth: int, samples: int) -> Model:
    """`depth` square Linear layers, with ReLU, between a narrow input and the classes."""
    widths = (features, *[width] * (depth + 1), CLASSES)
    text = f"mlp:{features}-{depth + 1}x{width}-{CLASSES}"
    return Model(text, lambda: models.mlp(*widths), (features,), samples)


def cnn(channels: int, side: int, depth: int, samples: int) -> Model:
    """`depth` blocks of a 3x3 convolution and ReLU, all of one shape."""

    def build() -> nn.Module:
        blocks: list[nn.Module] = [nn.Conv2d(3, channels, 3, padding=1), nn.ReLU()]
        for _ in range(depth):
            blocks += [nn.Conv2d(channels, channels, 3, padding=1), nn.ReLU()]
        return nn.Sequential(*blocks, nn.Flatten(), nn.Linear(channels * side * side, CLASSES))

    text = f"conv 3-{depth + 1}x{channels} on 3x{side}x{side}, fc {CLASSES}"
    return Model(text, build, (3, side, side), samples)


MODELS = {
    "mlp": mlp(64, 1024, 12, 256),
    "cnn": cnn(128, 8, 12, 32),
    "mnist-cnn": Model("mnist-cnn", models.mnist_cnn, (1, 28, 28), 64),
}
SMALL = {
    "mlp": mlp(8, 32, 8, 16),
    "cnn": cnn(4, 8, 4, 4),
    "mnist-cnn": Model("mnist-cnn", models.mnist_cnn, (1, 28, 28), 4),
}
"""The same for --small, by which one sees that everything runs."""

WIDE = Model(
    "mlp:784-2048-2048-2048-10", lambda: models.mlp(784, 2048, 2048, 2048, 10), (784,), 128
)
"""Its gradients are much larger than its activations; 128 samples are a whole batch of it."""
SMALL_WIDE = Model("mlp:8-64-64-64-10", lambda: models.mlp(8, 64, 64, 64, 10), (8,), 8)


def models_of(small: bool) -> dict[str, Model]:
    """All models by name."""
    return {**SMALL, "wide": SMALL_WIDE} if small else {**MODELS, "wide": WIDE}


class Case(NamedTuple):
    """A training run: how a batch is computed, and by how many ranks.

    apart   two ranks train one model each, without any message
    """

    model: str
    micro_batches: int
    batch: int  # samples of a step
    pp: int = 1
    dp: int = 1
    schedule: str = "1f1b"
    cut: str | None = None
    recompute: bool = False
    apart: bool = False
    small: bool = False

    @property
    def ranks(self) -> int:
        """How many ranks take part."""
        return 2 if self.apart else self.pp * self.dp

    @property
    def text(self) -> str:
        """All of it, for a rank to read."""
        return json.dumps(self)

    @classmethod
    def of(cls, text: str) -> Self:
        """The inverse of `text`."""
        return cls(*json.loads(text))

    def config(self, allreduce: str) -> Config:
        """The options of the run; plain SGD keeps nothing from step to step."""
        one_each = self.schedule == "pipedream"  # each micro-batch is a step
        return Config(
            batch_size=self.batch // self.micro_batches if one_each else self.batch,
            micro_batches=1 if one_each else self.micro_batches,
            pp=self.pp,
            schedule=self.schedule,
            cut=self.cut,
            recompute=self.recompute,
            allreduce=allreduce,
            optimizer="sgd",
            momentum=0.0,
            lr=1e-6,
            lr_schedule="constant",
            epochs=1000,
        )


def trainer_of(case: Case, comm: Comm | None = None, allreduce: str = "auto") -> nnmpi.Trainer:
    """The trainer of a case on this rank."""
    blas.tune()
    ranks = comm_self() if case.apart else comm or world()
    model = models_of(case.small)[case.model]
    n = case.batch * (PIPEDREAM_STEPS if case.schedule == "pipedream" else BATCHES)
    test = max(case.batch // 4, 2)
    trainer = random_trainer(case.config(allreduce), model.build, (n, *model.shape), test, ranks)
    trainer.model.train()
    return trainer


def steps_of(case: Case, trainer: nnmpi.Trainer) -> Steps:
    """Runs a number of steps; of pipedream, a multiple of PIPEDREAM_STEPS."""
    return _whole_epochs(trainer) if case.schedule == "pipedream" else trainer_steps(trainer)


def _whole_epochs(trainer: nnmpi.Trainer) -> Steps:
    """Pipedream's pipeline stays full until the end of an epoch."""

    def run(steps: int) -> None:
        state = StepState()
        for _ in range(-(-steps // PIPEDREAM_STEPS)):
            for result in trainer.strategy.steps(trainer.train, state):
                state = result.state

    return run
