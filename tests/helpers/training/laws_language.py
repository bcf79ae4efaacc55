"""A small gpt on a few windows of tokens, in any layout."""

from typing import Any

import numpy as np
from helpers.once import by_first, once
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


@once
def one_rank(micro_batches: int) -> Ran:
    """What ranks compare with."""
    return trained(comm_self(), micro_batches=micro_batches)


def trained(comm: Comm, **options: Any) -> Ran:
    """Ten steps."""
    case = {"optimizer": "adamw", "weight_decay": 0.1, "clip_norm": 0.5, "batch_size": 9}
    case["weight_decay_of"] = "matrices"
    return run(comm, gpt, tokens(), **case, **options)


def trains_as_one_rank(layout: Options, micro_batches: int, comm: Comm) -> None:
    wanted = by_first(comm, lambda: one_rank(micro_batches))
    equals(comm, trained(comm, micro_batches=micro_batches, **layout), wanted)
