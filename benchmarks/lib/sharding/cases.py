"""The models and the training runs of benchmarks/sharding.py."""

import json
from typing import NamedTuple, Self

import nnmpi
from lib.pipeline.cases import BATCHES, Model, mlp
from lib.workloads import CLASSES, random_trainer
from nnmpi import blas
from nnmpi.comm import comm_self, world
from nnmpi.config import Config
from nnmpi.nn import models


def alternating(narrow: int, wide: int, blocks: int, samples: int) -> Model:
    """Linear layers that widen and narrow again, with ReLU: two ranks with half of `wide` each do
    as much as one with half of it."""
    widths = (narrow, *[wide, narrow] * blocks, CLASSES)
    text = f"mlp:{'-'.join(map(str, widths))}"
    return Model(text, lambda: models.mlp(*widths), (narrow,), samples)


MODELS = {
    "50M": mlp(64, 2048, 12, 16),
    "mlp": mlp(64, 1024, 8, 128),
    "deep": mlp(64, 512, 24, 64),
    "H": alternating(1024, 4096, 2, 512),
    "2H": alternating(1024, 8192, 2, 512),
}
SMALL = {
    "50M": mlp(8, 128, 6, 8),
    "mlp": mlp(8, 128, 4, 32),
    "deep": mlp(8, 64, 12, 64),
    "H": alternating(32, 64, 2, 64),
    "2H": alternating(32, 128, 2, 64),
}
"""The same for --small, by which one sees that everything runs."""


def models_of(small: bool) -> dict[str, Model]:
    """All models by name."""
    return SMALL if small else MODELS


class Case(NamedTuple):
    """A training run: a layout, and how many samples a step has over all ranks.

    apart   two ranks train one model each, without any message
    """

    model: str
    batch: int
    dp: int = 1
    pp: int = 1
    tp: int = 1
    zero: int = 0
    micro_batches: int = 1
    allreduce: str = "ring"
    bucket_mb: float | None = None
    apart: bool = False
    small: bool = False

    @property
    def ranks(self) -> int:
        """How many ranks take part."""
        return 2 if self.apart else self.dp * self.pp * self.tp

    @property
    def text(self) -> str:
        """All of it, for a rank to read."""
        return json.dumps(self)

    @classmethod
    def of(cls, text: str) -> Self:
        """The inverse of `text`."""
        return cls(*json.loads(text))

    @property
    def name(self) -> str:
        """The layout, in the words of the command line."""
        axes = [f"{axis} {n}" for axis, n in zip(("dp", "pp", "tp"), self[2:5], strict=True)]
        used = [words for words in axes if words[-1] != "1"]
        used += [f"zero {self.zero}"] * (self.zero > 0)
        used += [self.allreduce] * (self.dp > 1)
        return "apart" if self.apart else ", ".join(used) or "1 rank"

    @property
    def config(self) -> Config:
        """The options of the run."""
        return Config(
            batch_size=self.batch,
            micro_batches=self.micro_batches,
            dp=1 if self.apart else self.dp,
            pp=self.pp,
            tp=self.tp,
            zero=self.zero,
            allreduce=self.allreduce,
            bucket_mb=self.bucket_mb,
            optimizer="adam",
            lr=1e-6,
            lr_schedule="constant",
            epochs=1000,
        )

    def trainer(self) -> nnmpi.Trainer:
        """The trainer of this rank."""
        blas.tune()
        model = models_of(self.small)[self.model]
        shape = (BATCHES * self.batch, *model.shape)
        ranks = comm_self() if self.apart else world()
        trainer = random_trainer(self.config, model.build, shape, max(2, self.ranks), ranks)
        trainer.model.train()
        return trainer
