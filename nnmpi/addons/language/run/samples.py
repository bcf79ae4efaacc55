"""Generates text in training: by `trainer.generate`, or --sample-every."""

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from nnmpi.addons.language.data.tokenizer import Tokenizer, tokenizer_of, vocabulary_of
from nnmpi.addons.language.models.folders import LanguageModel
from nnmpi.addons.language.models.gpt2 import END
from nnmpi.addons.language.run.decoder import Decoder
from nnmpi.addons.language.run.generation import (
    Sampling,
    checked_prompt,
    generated,
    special,
    texts,
    tokens_of_prompt,
)
from nnmpi.addons.language.run.models import check_stages
from nnmpi.comm import Comm
from nnmpi.data import Dataset
from nnmpi.data.inputs import arrays
from nnmpi.nn.store import reading
from nnmpi.options.config import Config
from nnmpi.parallel import refusals
from nnmpi.parallel.agreement import all_or_none
from nnmpi.run import rank_agreement
from nnmpi.run.session import Session
from nnmpi.run.training import RunParts

TOKENS = 100
"""The number of tokens in a sample of text."""


class Sampler(NamedTuple):
    """Generates samples of text during training (--sample-every), after `prompt`, tokens with the
    text `beginning`, as `how` says."""

    every: int
    tokenizer: Tokenizer
    prompt: list[int]
    beginning: str
    how: Sampling

    def text(self, session: Session) -> str:
        """Generates a text with the model in training, and returns it; every rank calls it."""
        session.comm.meet("generate")
        tokens = _tokens(session, self.prompt, TOKENS, self.how, self.tokenizer.size)
        return self.beginning + "".join(texts(tokens, self.tokenizer))


def agreed_sampler(comm: Comm, config: Config, dataset: Dataset) -> Sampler:
    """Returns the Sampler of --sample-every, equal on all ranks, which call it."""
    every = config.sample_every
    assert every is not None
    sampler = all_or_none(comm, lambda: _sampler(every, config, dataset))
    facts = {
        "the vocabulary": vocabulary_of(sampler.tokenizer.describe()),
        "prompt": sampler.prompt,
    }
    rank_agreement.check_given(comm, facts, rank_agreement.FILES)
    return sampler


def _sampler(every: int, config: Config, dataset: Dataset) -> Sampler:
    """Returns the Sampler for every `every` steps; raises ValueError if the data is not text."""
    (x, *others), y = arrays(dataset.train.x), dataset.train.y
    if dataset.language is None or others or x.shape != y.shape:
        raise ValueError(
            f"sample_every {every}: data {dataset.name} is not text in which a model predicts the "
            "next token; use --data text, text:FILE or tokens:FILE.npy, or call "
            "trainer.generate in a callback"
        )
    try:
        tokenizer = tokenizer_of(dataset.language.tokenizer)
        prompt = tokens_of_prompt(config.prompt, tokenizer)
    except ValueError as error:
        raise ValueError(f"sample_every {every}: {error}") from None
    return Sampler(every, tokenizer, prompt, config.prompt or "", Sampling(seed=config.seed))


def generate(
    session: Session, tokens: Iterable[int], count: int, sampling: tuple[float, int, float, int]
) -> np.ndarray:
    """Returns up to `count` tokens generated after `tokens`, on every rank, with the fields of a
    Sampling. Every rank calls it."""
    config, comm, model, how = session.config, session.comm, session.model, Sampling(*sampling)

    def checked() -> list[int]:
        if why := refusals.why_not("sample_every", config, comm.size):
            raise ValueError(f"cannot generate text with {why}")
        check_stages(config, model)
        how.checked()
        return checked_prompt(tokens, count, model)

    prompt = all_or_none(comm, checked)
    ends, same = all_or_none(comm, lambda: special(model, END)), "give all ranks the same"
    item = ("the tokens and options of generate", (prompt, count, how, ends), same)
    rank_agreement.check_same(comm, [item])
    return np.array([*_tokens(session, prompt, count, how, ends=ends)])


def _tokens(
    session: Session,
    prompt: Sequence[int],
    count: int,
    how: Sampling,
    size: int | None = None,
    ends: Sequence[int] = (),
) -> Iterator[int]:
    """Yields up to `count` tokens after a prompt, as `generated` does, with the model in training.
    Every rank must iterate to the end."""
    model, objective = session.model, session.task.objective
    window = arrays(session.setup.dataset.train.x)[0].shape[1]
    positions = model.sizes.positions if isinstance(model, LanguageModel) else window
    part, layout = session.part, session.strategy.layout
    decoder = Decoder(part, layout, positions, session.task.on, objective.whole)
    with session.evaluating(), reading(part.parameters):
        yield from generated(decoder, prompt, count, how, size, ends)


def read_every(config: Config) -> int:
    """Returns --sample-every's interval, at which the host needs the model."""
    return int(config.sample_every)


PARTS = RunParts(sampler=agreed_sampler, read_every=read_every)
