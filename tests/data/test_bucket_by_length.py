"""Batches of samples of similar length."""

from itertools import pairwise

import numpy as np
import pytest
from helpers.datafiles import refused

from nnmpi import Config, Trainer, nn
from nnmpi.data import Loader, Split, Standardiser
from nnmpi.data.loader import lengths_of, padding
from nnmpi.io.output.messages import as_text

N, T = 103, 20


def sequences() -> tuple[dict[str, np.ndarray], np.ndarray]:
    """N sequences of 1 to T words, with labels of which those of padding do not count."""
    rng = np.random.default_rng(0)
    words, lengths = rng.integers(0, 9, (N, T)), rng.integers(1, T + 1, N)
    labels = np.where(np.arange(T) < lengths[:, None], words % 3, -100)
    return {"words": words, "lengths": lengths}, labels


def loader(batch_size: int = 8, seed: int = 0, bucketed: bool = True) -> Loader:
    split = Split(*sequences())
    lengths = lengths_of(split.x, "words") if bucketed else None
    standardiser = Standardiser.of(split)
    return Loader(split, batch_size, standardiser=standardiser, seed=seed, lengths=lengths)


@pytest.mark.parametrize("batch_size", [1, 8, 100, 103, 200])
def test_an_epoch_has_every_row_once_and_the_smaller_batch_is_the_last(batch_size: int) -> None:
    made = loader(batch_size)
    for epoch in range(3):
        batches = [*made.batches(epoch)]
        whole, rest = divmod(N, batch_size)
        assert [len(rows) for rows in batches] == [batch_size] * whole + [rest] * (rest > 0)
        assert len(batches) == len(made)
        assert sorted(np.concatenate(batches)) == [*range(N)]
        assert sum(len(load.rows) for load in made.loads(epoch, lambda rows: [rows])) == N


def test_batches_do_not_overlap_in_length() -> None:
    made = loader()
    for epoch in range(5):
        spans = sorted(
            (made.lengths[rows].min(), made.lengths[rows].max()) for rows in made.batches(epoch)
        )
        assert all(a[1] <= b[0] for a, b in pairwise(spans))


def test_each_epoch_and_seed_has_its_order() -> None:
    made, longest, smaller = loader(), [], set()
    for epoch in range(12):
        batches = [*made.batches(epoch)]
        for rows, again in zip(batches, loader().batches(epoch), strict=True):
            np.testing.assert_array_equal(rows, again)
        longest.append(tuple(made.lengths[rows].max() for rows in batches))
        smaller.add(longest[-1][-1])
    assert len({*longest}) == 12
    assert len(smaller) > 4
    other = [*loader(seed=1).batches(0)]
    assert any((a != b).any() for a, b in zip(other, made.batches(0), strict=True))


def test_padding() -> None:
    assert padding(np.array([1, 3, 2]), [np.array([0, 1]), np.array([2])]) == 1 - 6 / 8
    lengths = sequences()[0]["lengths"]
    sorted_, plain = (padding(lengths, loader(bucketed=b).batches(0)) for b in (True, False))
    assert sorted_ < 0.1 < 0.3 < plain


class Reader(nn.Module):
    def __init__(self) -> None:
        self.embed, self.read = nn.Embedding(9, 4), nn.LSTM(4, 3, batch_first=True)

    def forward(self, words, lengths):
        return self.read(self.embed(words), lengths=lengths)[0].transpose(0, 2, 1)


def test_the_start_of_a_run_says_how_much_padding_there_is() -> None:
    data, found = sequences(), {}
    for bucketed in (True, False):
        config = Config(steps=2, batch_size=8, quiet=True, bucket_by_length=bucketed)
        with Trainer(config, Reader, data) as trainer:
            found[bucketed] = trainer.describe()
    assert "padding" not in found[False]
    event = found[True]
    assert event["padding"] < 0.15 < 0.3 < event["padding_unsorted"]
    assert f"{event['padding']:.1%} of their positions are padding" in as_text(event)
    assert "padding" not in as_text(found[False])


def test_samples_without_lengths_are_refused() -> None:
    x, y = sequences()
    many = np.stack([x["lengths"]] * 2, 1)
    for given, message in (
        (x["words"], "data arrays has one array: give x as a dict with lengths, (N,) integers"),
        ((x["words"], x["lengths"]), "has a tuple of 2"),
        ({"words": x["words"]}, "has a dict of words"),
        ({**x, "lengths": many}, "has int64 of shape (82, 2) as lengths"),
        ({**x, "lengths": x["lengths"] / 1.0}, "has float32 of shape (82,) as lengths"),
    ):
        with refused("--bucket-by-length sorts samples by their input named lengths", message):
            Trainer(Config(bucket_by_length=True), Reader, (given, y))
