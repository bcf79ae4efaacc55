"""Samples: a piece of text that the model writes, every so many steps of its training."""

from typing import NamedTuple

from nnmpi.config import Config
from nnmpi.data import Dataset
from nnmpi.data.inputs import arrays
from nnmpi.data.tokenizer import Tokenizer, tokenizer_of
from nnmpi.run.generation import tokens_of_prompt
from nnmpi.run.sampling import Sampling

TOKENS = 100
"""How long a sample is."""


class Sampler(NamedTuple):
    """What a sample begins with, and how its tokens are drawn."""

    every: int
    tokenizer: Tokenizer
    prompt: list[int]
    beginning: str
    how: Sampling


def sampler_of(config: Config, dataset: Dataset) -> Sampler | None:
    """What --sample-every asks for; raises ValueError for data that is no text."""
    if config.sample_every is None:
        return None
    (x, *others), y = arrays(dataset.train.x), dataset.train.y
    if dataset.language is None or others or x.shape != y.shape:
        raise ValueError(
            f"sample_every {config.sample_every}: data {dataset.name} is no text, of which a model "
            "predicts the next token; use --data text, text:FILE or tokens:FILE.npy, or call "
            "trainer.generate in a callback"
        )
    try:
        tokenizer = tokenizer_of(dataset.language.tokenizer)
        prompt = tokens_of_prompt(config.prompt, tokenizer)
    except ValueError as error:
        raise ValueError(f"sample_every {config.sample_every}: {error}") from None
    how = Sampling(seed=config.seed)
    return Sampler(config.sample_every, tokenizer, prompt, config.prompt or "", how)
