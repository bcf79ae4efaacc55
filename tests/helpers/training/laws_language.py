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

VOCABULARY, POSITIONS = 17, 6
UNEVEN = 9
"""Positions that no number of stretches of context parallelism divides."""


@once
def tokens(positions: int = POSITIONS) -> Dataset:
    """For ten steps."""
    return windows(50, positions)


@once
def many_tokens() -> Dataset:
    """For an epoch of batches of 24."""
    return windows(110)


def windows(samples: int, positions: int = POSITIONS) -> Dataset:
    """Windows of tokens, each with the next one as its label."""
    rng = np.random.default_rng(5)
    rows = rng.integers(0, VOCABULARY, (samples, positions + 1))
    x, y = (np.ascontiguousarray(rows[:, i : i + positions]) for i in (0, 1))
    return Dataset("tokens", Split(x[10:], y[10:]), Split(x[:10], y[:10]), VOCABULARY, "")


def gpt(positions: int = POSITIONS) -> nn.Module:
    """Five heads, which do not divide by 2, 3 or 4; with dropout."""
    return nn.GPT(2, 5, 20, VOCABULARY, positions, dropout=0.1)


def llama(positions: int = POSITIONS) -> nn.Module:
    """Five heads of keys, each for two heads."""
    return nn.Llama(nn.llama.LlamaSizes(2, 10, 20, VOCABULARY, positions, 5, 9))


MODELS: dict[str, Callable[[int], nn.Module]] = {
    "gpt": gpt,
    "decoder": partial(transformer_models.Decoder, VOCABULARY),
    "encoder": partial(transformer_models.Encoder, VOCABULARY),
    "mixture": partial(transformer_models.mixture, VOCABULARY),
    "llama": llama,
    "rotary": partial(transformer_models.rotary, VOCABULARY),
    "routed": partial(transformer_models.routed, VOCABULARY),
    "everywhere": partial(transformer_models.everywhere, VOCABULARY),
}
"""By name; each takes the number of positions."""


@once
def one_rank(model: str, micro_batches: int, positions: int, dtype: str = "float64") -> Ran:
    """What ranks compare with."""
    return trained(model, comm_self(), positions, micro_batches=micro_batches, dtype=dtype)


def trained(model: str, comm: Comm, positions: int = POSITIONS, **options: Any) -> Ran:
    """Ten steps."""
    case = {"optimizer": "adamw", "weight_decay": 0.1, "clip_norm": 0.5, "batch_size": 9}
    case["weight_decay_of"] = "matrices"
    return run(comm, partial(MODELS[model], positions), tokens(positions), **case, **options)


def trains_as_one_rank(layout: Options, micro_batches: int, model: str, comm: Comm) -> None:
    positions = UNEVEN if "cp" in layout else POSITIONS
    wanted = by_first(comm, lambda: one_rank(model, micro_batches, positions))
    equals(comm, trained(model, comm, positions, micro_batches=micro_batches, **layout), wanted)
