"""The models and the training runs of benchmarks/pipeline.py, sharding.py and language.py.

The halves of pipeline's `mlp` and `cnn` cost the same: all layers but the first and the last are
alike. The first needs no gradient of its input and the last has few outputs, so both cost next to
nothing.
"""

import json
from collections.abc import Callable
from typing import NamedTuple, Self

import nnmpi
from lib.workloads import CLASSES, Steps, random_trainer, trainer_steps
from nnmpi import nn
from nnmpi.arrays import blas
from nnmpi.comm import comm_self, world
from nnmpi.nn import models
from nnmpi.options.config import Config
from nnmpi.parallel.step.executor import StepState

BATCHES = 4  # which are made once and used in turn
PIPEDREAM_STEPS = 4
"""Steps between two drains of pipedream's pipeline, which has one epoch of them."""


class Model(NamedTuple):
    """A model, the shape of its samples, and how many of them a micro-batch has.

    words: how many different ones there are, if samples are words, with a label for each
    """

    text: str
    build: Callable[[], nn.Module]
    shape: tuple[int, ...]
    samples: int
    words: int = 0


def mlp(*widths: int, samples: int) -> Model:
    """Linear layers with ReLU between them."""
    text = f"mlp:{'-'.join(map(str, widths))}"
    return Model(text, lambda: models.mlp(*widths), widths[:1], samples)


def square(features: int, width: int, depth: int, samples: int) -> Model:
    """`depth` square Linear layers, with ReLU, between a narrow input and the classes."""
    text = f"mlp:{features}-{depth + 1}x{width}-{CLASSES}"
    return mlp(features, *[width] * (depth + 1), CLASSES, samples=samples)._replace(text=text)


def alternating(narrow: int, wide: int, blocks: int, samples: int) -> Model:
    """Linear layers that widen and narrow again, with ReLU: two ranks with half of `wide` each do
    as much as one with half of it."""
    return mlp(narrow, *[wide, narrow] * blocks, CLASSES, samples=samples)


def cnn(channels: int, side: int, depth: int, samples: int) -> Model:
    """`depth` blocks of a 3x3 convolution and ReLU, all of one shape."""

    def build() -> nn.Module:
        blocks: list[nn.Module] = [nn.Conv2d(3, channels, 3, padding=1), nn.ReLU()]
        for _ in range(depth):
            blocks += [nn.Conv2d(channels, channels, 3, padding=1), nn.ReLU()]
        return nn.Sequential(*blocks, nn.Flatten(), nn.Linear(channels * side * side, CLASSES))

    text = f"conv 3-{depth + 1}x{channels} on 3x{side}x{side}, fc {CLASSES}"
    return Model(text, build, (3, side, side), samples)


def mnist_cnn(samples: int) -> Model:
    return Model("mnist-cnn", models.mnist_cnn, (1, 28, 28), samples)


def gpt(layers: int, heads: int, width: int, positions: int, samples: int) -> Model:
    """A transformer on windows of 65 different characters."""
    words = 65
    text = f"gpt:{layers}x{heads}x{width}, T = {positions}"

    def build() -> nn.Module:
        return nn.GPT(layers, heads, width, words, positions)

    return Model(text, build, (positions,), samples, words)


PIPELINE = {
    "mlp": (square(64, 1024, 12, 256), square(8, 32, 8, 16)),
    "cnn": (cnn(128, 8, 12, 32), cnn(4, 8, 4, 4)),
    "mnist-cnn": (mnist_cnn(64), mnist_cnn(4)),
    # its gradients are much larger than its activations; its samples are a whole batch
    "wide": (mlp(784, 2048, 2048, 2048, 10, samples=128), mlp(8, 64, 64, 64, 10, samples=8)),
}
SHARDING = {
    "50M": (square(64, 2048, 12, 16), square(8, 128, 6, 8)),
    "mlp": (square(64, 1024, 8, 128), square(8, 128, 4, 32)),
    "deep": (square(64, 512, 24, 64), square(8, 64, 12, 64)),
    "H": (alternating(1024, 4096, 2, 512), alternating(32, 64, 2, 64)),
    "2H": (alternating(1024, 8192, 2, 512), alternating(32, 128, 2, 64)),
}
LANGUAGE = {
    "gpt-128": (gpt(4, 4, 128, 128, 16), gpt(1, 2, 8, 8, 4)),
    "gpt-384": (gpt(6, 6, 384, 256, 8), gpt(1, 2, 8, 8, 4)),
    "long": (gpt(2, 4, 128, 4096, 1), gpt(1, 2, 8, 16, 1)),
}
STUDIES = {"pipeline": PIPELINE, "sharding": SHARDING, "language": LANGUAGE}
"""Models by benchmark and name; the second of each is that of --small, to see that all runs."""


class Case(NamedTuple):
    """A training run: how a batch is computed, and by how many ranks.

    apart   two ranks train one model each, without any message
    """

    benchmark: str
    model: str
    batch: int  # samples of a step
    micro_batches: int = 1
    dp: int = 1
    pp: int = 1
    tp: int = 1
    cp: int = 1
    sequence_parallel: bool = False
    zero: int = 0
    schedule: str = "1f1b"
    cut: str | None = None
    recompute: bool = False
    allreduce: str = "ring"
    bucket_mb: float | None = None
    dtype: str = "float32"
    apart: bool = False
    small: bool = False

    @property
    def ranks(self) -> int:
        """How many ranks take part."""
        return 2 if self.apart else self.dp * self.pp * self.tp * self.cp

    @property
    def least_steps(self) -> int:
        """Timed are multiples of so many steps."""
        return PIPEDREAM_STEPS if self.schedule == "pipedream" else 1

    @property
    def text(self) -> str:
        """All of it, for a rank to read."""
        return json.dumps(self)

    @classmethod
    def of(cls, text: str) -> Self:
        """The inverse of `text`."""
        return cls(*json.loads(text))

    @property
    def built(self) -> Model:
        """The model itself."""
        return STUDIES[self.benchmark][self.model][self.small]

    @property
    def config(self) -> Config:
        """The options of the run; those of pipelines keep no optimizer state from step to step."""
        one_each = self.schedule == "pipedream"  # each micro-batch is a step
        return Config(
            batch_size=self.batch // self.micro_batches if one_each else self.batch,
            micro_batches=1 if one_each else self.micro_batches,
            dp=self.dp,
            pp=self.pp,
            tp=self.tp,
            cp=self.cp,
            sequence_parallel=self.sequence_parallel,
            zero=self.zero,
            schedule=self.schedule,
            cut=self.cut,
            recompute=self.recompute,
            allreduce=self.allreduce,
            bucket_mb=self.bucket_mb,
            dtype=self.dtype,
            optimizer="sgd" if self.benchmark == "pipeline" else "adam",
            momentum=0.0,
            lr=1e-6,
            lr_schedule="constant",
            epochs=1000,
        )

    def trainer(self) -> nnmpi.Trainer:
        """The trainer of this rank."""
        blas.tune()
        model = self.built
        shape = (BATCHES * self.batch, *model.shape)
        ranks = comm_self() if self.apart else world()
        trainer = random_trainer(
            *(self.config, model.build, shape, max(2, self.ranks), ranks), words=model.words
        )
        trainer.model.train()
        return trainer

    def steps(self, trainer: nnmpi.Trainer) -> Steps:
        """Runs a number of steps; of pipedream, a multiple of PIPEDREAM_STEPS."""
        return _whole_epochs(trainer) if self.least_steps > 1 else trainer_steps(trainer)


def _whole_epochs(trainer: nnmpi.Trainer) -> Steps:
    """Pipedream's pipeline stays full until the end of an epoch."""

    def run(steps: int) -> None:
        state = StepState()
        for _ in range(-(-steps // PIPEDREAM_STEPS)):
            for result in trainer.strategy.steps(trainer.train, state):
                state = result.state

    return run
