"""What recurrent layers have to keep, of padded sequences, on any number of ranks."""

from typing import Any

import numpy as np
from helpers.once import once
from helpers.training.pipelined import Options, trains_as_one_rank

import nnmpi
from nnmpi import nn
from nnmpi.comm import Comm
from nnmpi.data import Dataset, Split

WORDS, CLASSES, T = 30, 4, 9


class Tagger(nn.Module):
    """A label for each word of sequences of different lengths."""

    def __init__(self) -> None:
        self.embed = nn.Embedding(WORDS, 7)
        self.read = nn.LSTM(7, 6, 2, batch_first=True, dropout=0.3, bidirectional=True)
        self.again = nn.GRU(12, 5, batch_first=True)
        self.tags = nn.Linear(5, CLASSES)
        self.whole = nn.Linear(24, CLASSES)

    def forward(self, words: Any, lengths: Any) -> nnmpi.Tensor:
        y, (_, c) = self.read(self.embed(words), lengths=lengths)
        y, _ = self.again(y, lengths=lengths)
        last = self.whole(c.transpose(1, 0, 2).reshape(-1, 24)).unsqueeze(1)
        return (self.tags(y) + last).transpose(0, 2, 1)


@once
def sequences() -> Dataset:
    """100 of 1 to T words; labels of padding do not count."""
    rng = np.random.default_rng(0)
    words, lengths = rng.integers(0, WORDS, (131, T)), rng.integers(1, T + 1, 131)
    labels = np.where(np.arange(T) < lengths[:, None], words % CLASSES, -100)
    x = {"words": words, "lengths": lengths}
    splits = (
        Split({name: a[rows] for name, a in x.items()}, labels[rows])
        for rows in (slice(100), slice(100, None))
    )
    return Dataset("sequences", *splits, CLASSES, "")


CASE: Options = {"build": Tagger, "given": sequences, "micro_batches": 2, "clip_norm": 0.5}
CASE |= {"lr": 0.05}
LAYOUTS: dict[int, list[Options]] = {
    2: [
        *({"dp": 2}, {"dp": 2, "zero": 3}, {"tp": 2}),
        *({"pp": 2, "schedule": "zb-h1"}, {"pp": 2, "recompute": True}),
    ],
    3: [{"dp": 3}],
}
"""By the number of ranks; batches of 24 leave 4 sequences, which are cut unevenly."""


def padded_sequences_train_as_on_one_rank(comm: Comm) -> None:
    for layout in LAYOUTS.get(comm.size, [{"dp": comm.size}]):
        trains_as_one_rank(layout, CASE, comm)


def batches_of_similar_length_train_as_on_one_rank(comm: Comm) -> None:
    for layout in LAYOUTS.get(comm.size, [{"dp": comm.size}]):
        trains_as_one_rank(layout, {**CASE, "bucket_by_length": True}, comm)
