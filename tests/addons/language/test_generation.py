"""Generation: tokens in any layout, how they are drawn, and what a token costs."""

import numpy as np
import pytest
from helpers.comm.counted import Counted
from helpers.training import laws_generation as laws
from helpers.training.laws_gpt2 import model

import nnmpi
from nnmpi import nn
from nnmpi.addons.language.run.generation import Sampling
from nnmpi.addons.transformer.sequences import KVCache, decoding
from nnmpi.comm import OtherRankError, comm_self
from nnmpi.comm import thread_ranks as threads

SCORES = np.log(np.array([0.1, 0.4, 0.05, 0.25, 0.2]))


@pytest.mark.parametrize(
    ("how", "wanted"),
    [
        (Sampling(), [0.1, 0.4, 0.05, 0.25, 0.2]),
        (Sampling(0.5), [0.01, 0.16, 0.0025, 0.0625, 0.04]),
        (Sampling(top_k=2), [0, 0.4, 0, 0.25, 0]),
        (Sampling(top_p=0.64), [0, 0.4, 0, 0.25, 0]),
        (Sampling(top_p=0.66), [0, 0.4, 0, 0.25, 0.2]),
        (Sampling(top_k=3, top_p=0.5), [0, 0.4, 0, 0.25, 0]),
        (Sampling(1e-320), [0, 1, 0, 0, 0]),
    ],
)
def test_draws_are_of_the_distribution(how: Sampling, wanted: list[float]) -> None:
    p = np.array(wanted) / sum(wanted)
    np.testing.assert_allclose(how.probabilities(SCORES), p, rtol=1e-12, atol=0)
    n = 500
    counts = np.bincount([how.choose(SCORES, position) for position in range(n)], minlength=5)
    assert not counts[p == 0].any()
    assert (abs(counts - n * p) <= 4.5 * np.sqrt(n * p)).all()


def test_the_seed_and_the_position_make_the_draw() -> None:
    flat = np.zeros(1000)
    draws = [Sampling(seed=s).choose(flat, p) for s in (0, 1) for p in (0, 1)]
    assert len({*draws}) == 4
    assert draws == [Sampling(seed=s).choose(flat, p) for s in (0, 1) for p in (0, 1)]
    assert Sampling(0.0).choose(np.array([1.0, 3.0, 3.0]), 0) == 1


def test_a_new_token_goes_through_the_model_alone() -> None:
    """One position a token, whatever was before: counted in the first linear layer."""
    seen: list[int] = []
    made = model().eval()
    made.h[0].attn.c_attn.register_forward_hook(lambda m, given, y: seen.append(y.shape[1]))
    before = KVCache(8)
    for new in (5, 1, 1, 1):
        with decoding(before, new):
            made(nnmpi.tensor(np.zeros((1, new), np.int64)))
    assert seen == [5, 1, 1, 1]
    with pytest.raises(ValueError, match="at most 8 positions"), decoding(before, 1):
        made(nnmpi.tensor(np.zeros((1, 1), np.int64)))


def test_more_ranks_than_the_layout_has_are_refused(tmp_path) -> None:
    nnmpi.addons.language.models.gpt2.save_gpt2(model(), tmp_path)

    def too_many(comm) -> None:
        """The first rank has the error to print."""
        kind = OtherRankError if comm.rank else ValueError
        with pytest.raises(kind, match=r"2 ranks cannot hold one model with .* mpirun -n 1"):
            laws.ours(comm, str(tmp_path), [1], Sampling())

    threads.run(2, too_many)
    with pytest.raises(ValueError, match="1 rank cannot hold one model with --tp 2 --pp 1"):
        laws.ours(comm_self(), str(tmp_path), [1], Sampling(), tp=2)


# ---- nnmpi.generate


def test_the_function_generates_as_the_command_does() -> None:
    """A gpt by its cache, another model of the same layers by full passes over each window."""
    made = model().to("float64")
    made.h[0].eval()
    modes = [m.training for m in made.modules()]

    class Own(nn.Module):
        def __init__(self) -> None:
            self.gpt = made

        def forward(self, tokens: nnmpi.Tensor) -> nnmpi.Tensor:
            scores: nnmpi.Tensor = self.gpt(tokens)
            return scores

    for how in laws.SAMPLINGS:
        options = dict(zip(("temperature", "top_k", "top_p", "seed"), how, strict=True))
        found = nnmpi.generate(made, laws.PROMPT, laws.COUNT, **options)
        assert (found.dtype, found.shape) == (np.dtype("int64"), (laws.COUNT,))
        assert [m.training for m in made.modules()] == modes
        own = nnmpi.generate(Own(), laws.PROMPT, laws.COUNT, context=8, **options)
        assert found.tolist() == own.tolist()
        assert found.tolist() == laws.by_full_passes(model(), laws.PROMPT, how.choose)


PUBLISHED = {  # token 99 is beyond the vocabulary
    "config.json": {"bos_token_id": 3, "eos_token_id": None},
    "generation_config.json": {"bos_token_id": [1, 3], "eos_token_id": [99, 7]},
}


def test_a_text_is_between_the_special_tokens_of_a_folder() -> None:
    """As transformers has it, generation_config.json goes before config.json."""
    made = model().to("float64")
    behind_1 = nnmpi.generate(made, [1], 9).tolist()
    end = behind_1[4]
    length = behind_1.index(end) + 1
    made.published = {**PUBLISHED, "generation_config.json": {"eos_token_id": [99, end]}}
    assert nnmpi.generate(made, [1], 9).tolist() == behind_1[:length]
    assert nnmpi.generate(made, [], 9).tolist() == nnmpi.generate(made, [3], 9).tolist()
    made.published = PUBLISHED
    assert nnmpi.generate(made, max_new_tokens=3).tolist() == behind_1[:3]
    made.published = {"config.json": PUBLISHED["config.json"]}
    assert nnmpi.generate(made, [1], 9).tolist() == behind_1
    made.published = {"generation_config.json": {"eos_token_id": ["7"]}}
    with pytest.raises(
        ValueError, match=r"eos_token_id of generation_config.json is \['7'\]: give"
    ):
        nnmpi.generate(made, [1], 9)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"tokens": []}, r"tokens of shape \(0,\)"),
        ({"tokens": [1.5]}, "type float64: give at least one token"),
        ({"tokens": [99]}, "99"),
        ({"max_new_tokens": 0}, "max_new_tokens 0 must be a whole number of at least 1"),
        ({"temperature": -1}, "temperature -1 must be a number of at least 0"),
        ({"top_p": 0}, "top_p 0 must be above 0 and at most 1"),
        ({"context": 9}, "context 9 must be at least 1 and at most the 8 positions"),
    ],
)
def test_what_the_function_refuses(arguments: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        nnmpi.generate(model(), **{"tokens": [1], **arguments})


@pytest.mark.parametrize("size", [np.nan, 3e38])
def test_scores_that_are_not_finite_end_the_text(size: float) -> None:
    """On all ranks with one line, whatever the temperature."""
    made = model()
    made.ln_f.weight.data[...] = size
    for temperature in (0, 1):
        with pytest.raises(ValueError, match="scores after token 1 of the text are NaN or"):
            nnmpi.generate(made, [1], temperature=temperature)


@pytest.mark.parametrize("layout", [{"tp": 2}, {"pp": 2}])
def test_a_decoder_gives_back_its_communicators(
    layout: dict, tmp_path, monkeypatch: pytest.MonkeyPatch
) -> None:
    nnmpi.addons.language.models.gpt2.save_gpt2(model(), tmp_path)
    counted = Counted(monkeypatch)
    threads.run(2, lambda c: laws.ours(c, str(tmp_path), [1], Sampling(0.0), **layout))
    assert counted.kinds == {"split"}
    assert not counted.left


@pytest.mark.parametrize("layout", [{"tp": 2}, {"pp": 2}])
def test_scores_that_are_not_finite_end_all_ranks(layout: dict, tmp_path) -> None:
    made = model()
    made.ln_f.weight.data[...] = 3e38
    nnmpi.addons.language.models.gpt2.save_gpt2(made, tmp_path)

    def rank(comm) -> None:
        kind = OtherRankError if comm.rank else ValueError
        with pytest.raises(kind, match=None if comm.rank else "not finite"):
            laws.ours(comm, str(tmp_path), [1], Sampling(0.0), "float32", **layout)

    threads.run(2, rank)
