"""Where sequences are cut, what is refused, and runs that are evaluated, verified and asked."""

from collections.abc import Callable
from itertools import product
from typing import Any

import numpy as np
import pytest
from helpers.datafiles import refused
from helpers.training.laws_language import POSITIONS, UNEVEN, VOCABULARY, tokens
from helpers.training.pipelined import run
from helpers.training.transformer_models import Decoder

from nnmpi import Config, Trainer, nn
from nnmpi.addons.transformer.context.sequence_cut import SequenceCut
from nnmpi.autograd import Tensor
from nnmpi.comm import Comm, OtherRankError, comm_self
from nnmpi.comm import thread_ranks as threads
from nnmpi.parallel.mesh import Mesh


@pytest.mark.parametrize(("ranks", "T"), [*product((1, 2, 3, 5), (10, 13, 64))])
def test_ranks_have_all_positions_and_see_all_pairs_once(ranks: int, T: int) -> None:
    cut = SequenceCut(ranks, T)
    own = [cut.of(r) for r in range(ranks)]
    assert sorted(np.concatenate(own)) == [*range(T)]
    assert all((np.diff(one) > 0).all() for one in own)
    for causal in (True, False):
        seen = np.zeros((T, T), int)
        for q, k in product(range(ranks), range(ranks)):
            part = cut.seen(q, k, causal)
            i, j = own[q][part.queries], own[k][part.keys]
            seen[np.ix_(i, j)] += (i[:, None] >= j) if part.causal else 1
            assert cut.keys_seen(q, k, causal) == len(j)
        np.testing.assert_array_equal(seen, np.tri(T, dtype=int) if causal else 1)


def test_ranks_look_at_as_many_pairs() -> None:
    cut, pairs = SequenceCut(4, 64), []
    for q in range(4):
        own = cut.of(q)
        pairs.append(int((own + 1).sum()))
    assert len({*pairs}) == 1


# ---- what is refused


class Pooled(nn.Module):
    """Sums over positions in its own forward."""

    def __init__(self) -> None:
        self.wte, self.head = nn.Embedding(VOCABULARY, 8), nn.Linear(8, VOCABULARY)
        self.scores = nn.ChannelsFirst()

    def forward(self, x: Tensor) -> Tensor:
        h = self.wte(x)
        y: Tensor = self.scores(self.head(h + h.sum(axis=1, keepdims=True)))
        return y


class Biased(nn.Module):
    """Adds a number for each position."""

    def __init__(self) -> None:
        self.wte, self.head = nn.Embedding(VOCABULARY, 8), nn.Linear(8, VOCABULARY)
        self.bias = nn.Parameter(np.ones((UNEVEN, 8), "float32"))
        self.scores = nn.ChannelsFirst()

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.scores(self.head(self.wte(x) + self.bias))
        return y


def of_layers(*layers: Callable[[], nn.Module]) -> nn.Module:
    inside = (make() for make in layers)
    last = nn.Linear(8, VOCABULARY), nn.ChannelsFirst()
    return nn.Sequential(nn.Embedding(VOCABULARY, 8), *inside, *last)


MIXING: dict[str, tuple[Callable[[], nn.Module], str]] = {
    "convolution": (
        lambda: of_layers(
            nn.ChannelsFirst, lambda: nn.Conv1d(8, 8, 3, padding=1), nn.ChannelsFirst
        ),
        "Conv1d 2",
    ),
    "recurrence": (lambda: of_layers(lambda: nn.GRU(8, 8, batch_first=True), First), "GRU 1"),
    "norm of positions": (lambda: of_layers(lambda: nn.LayerNorm((UNEVEN, 8))), "LayerNorm 1"),
    "sum over positions": (Pooled, "sum"),
    "a number for each position": (Biased, "add"),
    "experts": (lambda: of_layers(lambda: nn.MixtureOfExperts(8, 4, 3)), "Router 1.router"),
    "branches": (lambda: of_layers(lambda: nn.Branches({"a": nn.Linear(8, 8)})), "joined"),
}


class First(nn.Module):
    """The output of a recurrent layer, without its state."""

    def forward(self, x: Any) -> Tensor:
        y: Tensor = x[0]
        return y


@pytest.mark.parametrize(("build", "what"), MIXING.values(), ids=MIXING)
def test_what_mixes_positions_is_refused(build: Callable[[], nn.Module], what: str) -> None:
    assert Trainer(Config(steps=1), build, tokens(UNEVEN), comm_self())  # one rank trains it
    with refused("cp 2", what, "may mix positions"):
        threads.run(2, lambda comm: Trainer(Config(cp=2), build, tokens(UNEVEN), comm))


def decoder(positions: int = POSITIONS) -> nn.Module:
    return Decoder(VOCABULARY, positions)


def test_sequences_that_are_too_short_are_refused() -> None:
    with refused("cp 4 cuts sequences into 8 chunks", "they have 6 positions", "--cp 3"):
        threads.run(4, lambda comm: Trainer(Config(cp=4), decoder, tokens(), comm))


@pytest.mark.parametrize("cut", [{"cp": 2}, {"tp": 2, "sequence_parallel": True}])
def test_tests_of_another_length_are_refused(cut: dict[str, Any]) -> None:
    data = tokens(UNEVEN)
    longer = data._replace(test=tokens(UNEVEN + 3).test)

    def law(comm: Comm) -> None:
        with pytest.raises((ValueError, OtherRankError), match="have 9 and 12 positions"):
            Trainer(Config(**cut), lambda: decoder(UNEVEN + 3), longer, comm)

    threads.run(2, law)


def test_samples_without_positions_are_refused() -> None:
    with refused(
        "cp 2 cuts sequences", "samples of digits have the shape (1, 8, 8) and one label each"
    ):
        threads.run(2, lambda comm: Trainer(Config(cp=2), comm=comm))


# ---- runs


def longer() -> nn.Module:
    return decoder(UNEVEN)


def test_a_run_is_verified_against_one_rank() -> None:
    options = {"batch_size": 9, "steps": 4, "verify": True}
    ran = threads.run(2, lambda comm: run(comm, longer, tokens(UNEVEN), cp=2, **options))[0]
    found = ran.done["largest_differences"]
    for what in ("loss", "gradients", "parameters"):
        assert found[f"{what}_relative"] < 1e-10


def asked(comm: Comm, **layout: int) -> tuple[np.ndarray, Any]:
    options = Config(dtype="float64", batch_size=4, **layout)
    with Trainer(options, longer, tokens(UNEVEN), comm) as trainer:
        return trainer.predict(tokens(UNEVEN).test.x), trainer.evaluate()


@pytest.mark.parametrize("layout", [{"cp": 3}, {"cp": 2, "tp": 2}, {"cp": 2, "pp": 2}])
def test_scores_are_whole_on_all_ranks(layout: dict[str, int]) -> None:
    scores, sums = asked(comm_self())
    ranks = int(np.prod([*layout.values()]))
    for found, counted in threads.run(ranks, lambda comm: asked(comm, **layout)):
        np.testing.assert_allclose(found, scores, rtol=0, atol=1e-13)
        assert counted.samples == sums.samples
        assert counted.mean_loss == pytest.approx(sums.mean_loss, rel=1e-12)
        assert counted.means == pytest.approx(sums.means)


def test_ranks_along_cp_come_just_before_those_along_dp() -> None:
    mesh = Mesh.filled(8, {"dp": 2, "cp": 2, "pp": 2})
    assert mesh.group(5, "cp") == (4, 5)
    assert mesh.group(5, "dp", "cp") == (4, 5, 6, 7)
    sizes = {"dp": 2, "cp": 2, "pp": 2, "tp": 3}
    assert Mesh.filled(24, {"cp": 2, "pp": 2, "tp": 3}).axes == sizes
