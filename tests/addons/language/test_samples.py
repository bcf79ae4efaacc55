"""Text while a model is trained: on any layout what one rank writes; training keeps its bits."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.datafiles import refused

import nnmpi
from nnmpi import Config, Trainer, nn
from nnmpi.addons.language.run import samples
from nnmpi.comm import Comm, OtherRankError, comm_self, thread_ranks
from nnmpi.io.output import Event, NullReport, Report

TOKENS = 20
TEXT = "the lazy dog, and\nback again. " * 30
PROMPT = "the"
SAMPLED = {"sample_every": 2, "prompt": PROMPT}

LAYOUTS: dict[str, tuple[int, dict[str, Any]]] = {
    "one rank": (1, {"micro_batches": 2}),
    "dp": (2, {"allreduce": "shared"}),
    "zero 3": (2, {"zero": 3, "bucket_mb": 0.001}),
    "tp": (2, {"tp": 2}),
    "pipeline": (2, {"pp": 2, "micro_batches": 2, "recompute": True}),
    "interleaved": (2, {"pp": 2, "micro_batches": 2, "schedule": "interleaved"}),
    "in a v": (3, {"pp": 3, "micro_batches": 3, "schedule": "zb-v"}),
    "pp and tp": (4, {"pp": 2, "tp": 2}),
    "slices": (2, {"reproducible": True, "slices": 4}),
    "verify": (2, {"verify": True}),
}


@pytest.fixture(autouse=True)
def _short_samples(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(samples, "TOKENS", TOKENS)


@pytest.fixture
def text(tmp_path: Path) -> str:
    (tmp_path / "text").write_text(TEXT)
    return f"text:{tmp_path / 'text'}"


class Heard(Report):
    """A report that keeps the samples."""

    def __init__(self) -> None:
        super().__init__(quiet=True)
        self.samples: list[Event] = []

    def event(self, event: Event) -> None:
        self.samples += [event] * (event["event"] == "sample")


def options(data: str, **more: Any) -> dict[str, Any]:
    small = {"model": "gpt:2x2x8", "context": 12, "batch_size": 8, "steps": 5, "dropout": 0.2}
    return {**small, "data": data, "dtype": "float64", "lr": 0.02, **more}


def run(comm: Comm, build: Any = None, **given: Any) -> tuple[list[Event], str]:
    heard = Heard()
    with Trainer(Config(**given), build, comm=comm) as trainer:
        digest: str = trainer.fit(heard)["parameters_sha256"]
    return heard.samples, digest


@pytest.mark.one_in(4)
@pytest.mark.parametrize("name", LAYOUTS)
def test_samples_are_those_of_one_rank_and_change_nothing(name: str, text: str) -> None:
    """With dropout, whose masks depend on the step alone; longer than the 12 positions."""
    ranks, layout = LAYOUTS[name]
    given = options(text, **layout)
    (plain, digest), *_ = thread_ranks.run(ranks, lambda comm: run(comm, **given))
    found = thread_ranks.run(ranks, lambda comm: run(comm, **given, **SAMPLED))
    one, _ = run(comm_self(), **options(text), **SAMPLED)
    assert plain == []
    for texts, same in found:
        assert same == digest
        assert texts == one
    assert [event["step"] for event in one] == [2, 4]
    assert all(event["text"].startswith(PROMPT) for event in one)
    assert {len(event["text"]) for event in one} == {len(PROMPT) + TOKENS}
    assert one[0]["text"] != one[1]["text"]


class Own(nn.Module):
    """Scores of the next token from those so far: a model that keeps nothing of them."""

    def __init__(self) -> None:
        self.embed, self.read = nn.Embedding(19, 8), nn.GRU(8, 8, batch_first=True)
        self.head = nn.Linear(8, 19)

    def forward(self, tokens: nnmpi.Tensor) -> nnmpi.Tensor:
        y, _ = self.read(self.embed(tokens))
        scores: nnmpi.Tensor = self.head(y).transpose(0, 2, 1)
        return scores


def test_a_model_of_ones_own_writes_too(text: str) -> None:
    given = options(text) | {"model": Config().model, "dropout": 0.0}
    (one,) = thread_ranks.run(1, lambda comm: run(comm, Own, **given, **SAMPLED))
    for found in thread_ranks.run(2, lambda comm: run(comm, Own, **given, **SAMPLED)):
        assert found[0] == one[0]
    with refused("stages of Own take sequences of one length", "use pp 1 instead of 2"):
        thread_ranks.run(2, lambda comm: run(comm, Own, **given, **SAMPLED, pp=2))


def test_callbacks_generate_on_all_ranks(text: str, tmp_path: Path) -> None:
    """Within an epoch, behind it, and after the run: what the saved model writes."""
    saved = tmp_path / "m"

    class Writer:
        def __init__(self) -> None:
            self.found: list[list[int]] = []

        def on_step(self, trainer: Trainer, event: Event) -> None:
            self.found.append(trainer.generate([3, 1], 5, temperature=0).tolist())
            assert trainer.model.training

        def on_end(self, trainer: Trainer, event: Event) -> None:
            trainer.save(str(saved))

    def rank(comm: Comm) -> tuple[list[list[int]], list[int]]:
        writer = Writer()
        config = Config(**options(text, pp=2, tp=2, steps=2))
        with Trainer(config, comm=comm, callbacks=[writer]) as trainer:
            trainer.fit(NullReport())
            return writer.found, trainer.generate([3, 1], 9, seed=4).tolist()

    found, last = thread_ranks.run(4, rank)[3]
    assert [len(tokens) for tokens in found] == [5, 5]
    model = nn.GPT(2, 2, 8, 19, 12).to("float64")
    model.load_state_dict(nnmpi.load(saved))
    assert nnmpi.generate(model, [3, 1], 9, seed=4).tolist() == last


def test_what_generates_no_text(text: str) -> None:
    def one(comm: Comm) -> None:
        with Trainer(Config(**options(text)), comm=comm) as trainer:
            with refused("top_p 2 must be above 0"):
                trainer.generate([1], top_p=2)
            with refused("tokens of shape (0,)"):
                trainer.generate([])

    one(comm_self())

    def along_cp(comm: Comm) -> None:
        with Trainer(Config(**options(text, cp=2)), comm=comm) as trainer:
            trainer.generate([1])

    with refused("cannot generate text with cp 2: a new token is one position"):
        thread_ranks.run(2, along_cp)

    def differing(comm: Comm) -> None:
        with Trainer(Config(**options(text)), comm=comm) as trainer:
            trainer.generate([comm.rank])

    with refused("rank 1 differs from rank 0 in the tokens and options of generate"):
        thread_ranks.run(2, differing)

    def beyond(comm: Comm) -> None:
        """The second stage has no embedding, and is refused as well."""
        words = "tokens from 3 to 19: the model has only tokens from 0 to 18"
        with (
            Trainer(Config(**options(text, pp=2)), comm=comm) as trainer,
            pytest.raises((ValueError, OtherRankError), match=words),
        ):
            trainer.generate([3, 19])

    thread_ranks.run(2, beyond)


def test_data_that_are_no_text_are_refused_before_the_first_step() -> None:
    x = np.zeros((20, 6), np.int64)
    config = Config(model="gpt:1x1x4", sample_every=3)
    with refused("sample_every 3: data", "is not text", "or call trainer.generate in a callback"):
        Trainer(config, data=(x, x))
    with refused("sample_every 3", "prompt: character '\u0416'"):
        Trainer(Config(model="gpt:1x1x4", data="text", sample_every=3, prompt="Z\u0416"))
