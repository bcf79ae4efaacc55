"""What events say of text: perplexity, bits per character, tokens a second."""

import math

import numpy as np
import pytest

from nnmpi import Config, Trainer, data, nn
from nnmpi.comm import Comm, thread_ranks
from nnmpi.data import Dataset, Language
from nnmpi.io.output.messages import as_text

T, V = 7, 5


def dataset(**changes: object) -> Dataset:
    """Windows of random tokens, of which 3 stand for 4 characters; 19 are for testing."""
    rng = np.random.default_rng(0)
    found = data.from_arrays(*(rng.integers(0, V, (n, T)) for n in (50, 50, 19, 19)))
    return found._replace(classes=V, language=Language("{}", "character", 0.75))._replace(**changes)


class Tiny(nn.Module):
    """Scores of the next token from this one."""

    def __init__(self) -> None:
        self.embed, self.head = nn.Embedding(V, 6), nn.Linear(6, V)

    def forward(self, x):
        return self.head(self.embed(x)).transpose(0, 2, 1)


def run(comm: Comm, given: Dataset, **options) -> tuple[list[dict], np.ndarray]:
    """The events of two epochs, and the scores of the test samples."""
    events: list[dict] = []

    class Listener:
        def on_epoch(self, trainer, event):
            events.append(event)

        def on_end(self, trainer, event):
            events.append(event)

    config = Config(epochs=2, batch_size=8, dtype="float64", quiet=True)
    with Trainer(config, Tiny, given, comm, callbacks=[Listener()], **options) as trainer:
        trainer.fit()
        return events, trainer.predict(given.test.x)


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_perplexity_and_bits_are_of_all_tokens_of_all_ranks(ranks: int) -> None:
    given = dataset()
    for events, scores in thread_ranks.run(ranks, run, given):
        exp = np.exp(np.float64(scores))
        p = np.take_along_axis(exp / exp.sum(1, keepdims=True), given.test.y[:, None], 1)
        assert [event["event"] for event in events] == ["epoch", "epoch", "done"]
        for event in events[1:]:
            assert event["perplexity"] == pytest.approx(math.exp(-np.log(p).mean()), rel=1e-10)
            bits = -np.log2(p).sum() / (p.size / 0.75)
            assert event["bits_per_character"] == pytest.approx(bits, rel=1e-10)
        text = as_text(events[1])
        assert f"perplexity {events[1]['perplexity']:.4g}   {bits:.3f} bits a character" in text
        assert f"{bits:.3f} bits a character" in as_text(events[2])


def test_labels_that_are_ignored_do_not_count() -> None:
    given = dataset()
    y = given.test.y.copy()
    y[np.arange(T) >= np.arange(len(y))[:, None] % (T + 1)] = -100  # of some samples none counts
    given = given._replace(test=given.test._replace(y=y))
    counts = y != -100
    for ranks in (1, 2, 3):
        for events, scores in thread_ranks.run(ranks, run, given):
            exp = np.exp(scores.transpose(0, 2, 1)[counts])
            p = exp[np.arange(len(exp)), y[counts]] / exp.sum(1)
            perplexity, bits = math.exp(-np.log(p).mean()), -np.log2(p).mean() * 0.75
            assert events[-1]["perplexity"] == pytest.approx(perplexity, rel=1e-10)
            assert events[-1]["bits_per_character"] == pytest.approx(bits, rel=1e-10)


def test_they_are_of_text_and_of_likelihoods_only() -> None:
    smooth = nn.CrossEntropyLoss(label_smoothing=0.1)

    def own(scores, labels):
        return nn.CrossEntropyLoss()(scores, labels)

    for given, loss, has in (
        (dataset(), None, True),
        (dataset(language=None), None, False),
        (dataset(), smooth, False),
        (dataset(), own, False),
        (dataset(), nn.CrossEntropyLoss(weight=np.ones(V)), False),
    ):
        ((events, _),) = thread_ranks.run(1, lambda c, d=given, f=loss: run(c, d, loss=f))
        for event in events:
            assert ("perplexity" in event) == ("bits_per_character" in event) == has
            assert ("perplexity" in as_text(event)) == has


def test_a_text_of_bytes_has_bits_per_byte() -> None:
    ((events, _),) = thread_ranks.run(1, run, dataset(language=Language("{}", "byte", 1.0)))
    assert events[-1]["bits_per_byte"] == events[-1]["test_loss"] / math.log(2)
    assert "bits a byte" in as_text(events[-1])


def test_other_data_have_samples_a_second_only() -> None:
    rng = np.random.default_rng(0)
    x, y = rng.standard_normal((40, 3)), rng.integers(0, 2, 40)
    event = Trainer(Config(epochs=1, quiet=True), lambda: nn.Linear(3, 2), data=(x, y)).fit()
    assert "samples_per_second" in event
    assert not {"tokens_per_second", "perplexity"} & event.keys()
