"""Small language models on a few windows of tokens, in any layout."""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from helpers.once import by_first, once
from helpers.training import transformer_models
from helpers.training.pipelined import Options, Ran, equals, run

from nnmpi import nn
from nnmpi.comm import Comm, comm_self
from nnmpi.data import Dataset, Split

VOCABULARY, POSITIONS, SAMPLES = 17, 6, 50


@once
def tokens() -> Dataset:
    """Windows of tokens, each with the next one as its label."""
    rng = np.random.default_rng(5)
    rows = rng.integers(0, VOCABULARY, (SAMPLES, POSITIONS + 1))
    x, y = (np.ascontiguousarray(rows[:, i : i + POSITIONS]) for i in (0, 1))
    return Dataset("tokens", Split(x[10:], y[10:]), Split(x[:10], y[:10]), VOCABULARY, "")


def gpt() -> nn.Module:
    """Five heads, which do not divide by 2, 3 or 4; with dropout."""
    return nn.GPT(2, 5, 20, VOCABULARY, POSITIONS, dropout=0.1)


MODELS: dict[str, Callable[[], nn.Module]] = {
    "gpt": gpt,
    "encoder": partial(transformer_models.Encoder, VOCABULARY, POSITIONS),
    "rotary": partial(transformer_models.rotary, VOCABULARY, POSITIONS),
}


@once
def one_rank(model: str, micro_batches: int) -> Ran:
    """What ranks compare with."""
    return trained(model, comm_self(), micro_batches=micro_batches)


def trained(model: str, comm: Comm, **options: Any) -> Ran:
    """Ten steps."""
    case = {"optimizer": "adamw", "weight_decay": 0.1, "clip_norm": 0.5, "batch_size": 9}
    return run(comm, MODELS[model], tokens(), **case, **options)


def trains_as_one_rank(layout: Options, micro_batches: int, comm: Comm, model: str = "gpt") -> None:
    wanted = by_first(comm, lambda: one_rank(model, micro_batches))
    equals(comm, trained(model, comm, micro_batches=micro_batches, **layout), wanted)
