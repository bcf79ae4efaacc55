"""Samples: a piece of text that the model writes, every so many steps of its training."""

from typing import NamedTuple

from nnmpi.comm import Comm
from nnmpi.config import Config
from nnmpi.data import Dataset
from nnmpi.data.inputs import arrays
from nnmpi.data.tokenizer import Tokenizer, tokenizer_of, vocabulary_of
from nnmpi.parallel.agreement import all_or_none
from nnmpi.run import consistency
from nnmpi.run.text.generation import tokens_of_prompt
from nnmpi.run.text.sampling import Sampling

TOKENS = 100
"""How long a sample is."""


class Sampler(NamedTuple):
    """What a sample begins with, and how its tokens are drawn."""

    every: int
    tokenizer: Tokenizer
    prompt: list[int]
    beginning: str
    how: Sampling


def agreed_sampler(comm: Comm, config: Config, dataset: Dataset) -> Sampler | None:
    """What --sample-every asks for, the same on all ranks; every rank calls it."""
    every = config.sample_every
    if every is None:
        return None
    found = all_or_none(comm, lambda: _sampler(every, config, dataset))
    facts = {"the vocabulary": vocabulary_of(found.tokenizer.describe()), "prompt": found.prompt}
    consistency.check_given(comm, facts, consistency.FILES)
    return found


def _sampler(every: int, config: Config, dataset: Dataset) -> Sampler:
    """Raises ValueError for data that is no text."""
    (x, *others), y = arrays(dataset.train.x), dataset.train.y
    if dataset.language is None or others or x.shape != y.shape:
        raise ValueError(
            f"sample_every {every}: data {dataset.name} is no text, of which a model predicts the "
            "next token; use --data text, text:FILE or tokens:FILE.npy, or call "
            "trainer.generate in a callback"
        )
    try:
        tokenizer = tokenizer_of(dataset.language.tokenizer)
        prompt = tokens_of_prompt(config.prompt, tokenizer)
    except ValueError as error:
        raise ValueError(f"sample_every {every}: {error}") from None
    how = Sampling(seed=config.seed)
    return Sampler(every, tokenizer, prompt, config.prompt or "", how)
