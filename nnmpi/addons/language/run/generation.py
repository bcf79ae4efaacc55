"""Generates tokens one after the other, and converts them to text. The random number for a token
depends on the seed and the token's position alone."""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import NamedTuple, Self

import numpy as np

from nnmpi.addons.language.data.tokenizer import BPETokenizer, Tokenizer
from nnmpi.addons.language.models.folders import LanguageModel, Sizes
from nnmpi.addons.language.models.gpt2 import BEGIN, END, special_tokens
from nnmpi.addons.language.run.decoder import NO_LIMIT, Decoder
from nnmpi.addons.language.run.saved import own_tokenizer
from nnmpi.arrays import backend, keyed
from nnmpi.nn import Module
from nnmpi.options.quoting import shown
from nnmpi.options.value_forms import ABOVE_0, FROM_0, NUMBER_FROM_0, Allowed
from nnmpi.parallel.layout import Layout
from nnmpi.parallel.model.parts import ModelPart

UP_TO_1 = Allowed("above 0 and at most 1", lambda p: ABOVE_0.has(p) and p <= 1)
OPTIONS: dict[str, tuple[Allowed, str]] = {
    "temperature": (NUMBER_FROM_0, "divides the scores; 0: always the best token"),
    "top_k": (FROM_0, "draw from this many of the best tokens; 0: all"),
    "top_p": (UP_TO_1, "draw from the best tokens that together have this probability"),
    "seed": (FROM_0, "seed of the draws"),
}
"""By option, the allowed range and the help text of its flag."""


class Sampling(NamedTuple):
    """How the next token is drawn: from the best, with probabilities like exp(scores /
    temperature).

    temperature   0: always the best token
    top_k         the number of best tokens, and all with the same score as the last of them; 0: all
    top_p         the fewest best tokens whose probabilities sum to at least this
    """

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    seed: int = 0

    def checked(self) -> Self:
        """Returns this Sampling; raises ValueError for numbers that are out of range."""
        for name, value in self._asdict().items():
            within, _ = OPTIONS[name]
            if not within.has(value):
                raise ValueError(f"{name} {value!r:.60} must be {within.words}")
        return self

    def probabilities(self, scores: np.ndarray) -> np.ndarray:
        """Returns the probability of each token as float64, for a temperature above 0."""
        z: np.ndarray = scores.astype("float64")
        if 0 < self.top_k < len(z):
            z[z < np.partition(z, -self.top_k)[-self.top_k]] = -np.inf
        with np.errstate(over="ignore"):  # e^-inf is 0
            p: np.ndarray = np.exp((z - z.max()) / self.temperature)
        p /= p.sum()
        if self.top_p < 1:
            order = np.argsort(-p, kind="stable")
            better = np.cumsum(p[order]) - p[order]
            p[order[better >= self.top_p]] = 0
            p /= p.sum()
        return p

    def choose(self, scores: np.ndarray, position: int) -> int:
        """Returns a token drawn by scores, position and seed alone."""
        if not self.temperature:
            return int(scores.argmax())
        sums = np.cumsum(self.probabilities(scores))
        key, at, row = keyed.key(self.seed, "generate"), np.array([position]), np.zeros(1, int)
        draw = keyed.uniform(key, at, row)[0] * sums[-1]
        return int(np.searchsorted(sums, draw, side="right"))


# ---- tokens, and their text


INCOMPLETE = "\N{REPLACEMENT CHARACTER}"


def generate(
    model: Module,
    tokens: Iterable[int] = (),
    max_new_tokens: int = 100,
    *,
    temperature: float = 1.0,
    top_k: int = 0,
    top_p: float = 1.0,
    seed: int = 0,
    context: int | None = None,
) -> np.ndarray:
    """Returns the tokens that a model writes after `tokens`: max_new_tokens of them, or fewer if
    the model was loaded from a folder of GPT-2 with an eos_token_id and draws that token.

    The model takes tokens (N, T) and returns scores (N, vocabulary, T) of the next token, as
    `nn.GPT` does. It runs in evaluation mode; afterwards its mode is as before. Of a longer text it
    gets the last `context` tokens, by default as many as a GPT has positions. Without tokens a text
    begins after the bos_token_id of the folder. Each token is drawn by `seed` and its position. For
    a model that a Trainer has cut among ranks, use `trainer.generate`.

    temperature   divides the scores; 0: always the best token
    top_k, top_p  draw from this many of the best, or from the best with this total probability
    """
    if model._before_user_call is not None:
        raise ValueError("each rank has a part of this model: call trainer.generate on all ranks")
    how = Sampling(temperature, top_k, top_p, seed).checked()
    prompt = checked_prompt(tokens, max_new_tokens, model)
    room = model.sizes.positions if isinstance(model, LanguageModel) else NO_LIMIT
    if context is not None and not 1 <= context <= room:
        raise ValueError(f"context {context} must be at least 1 and at most the {room:,} positions")
    on = next((backend.of(p.array) for p in model.parameters()), backend.CPU)
    layout = Layout.of_one_rank()
    with evaluating(model):
        decoder = Decoder(ModelPart.whole(model), layout, context or room, on)
        return np.array(
            [*generated(decoder, prompt, max_new_tokens, how, ends=special(model, END))]
        )


@contextmanager
def evaluating(model: Module) -> Iterator[None]:
    """A context in which a model is in evaluation mode; afterwards each module has its old mode."""
    modes = [(m, m.training) for m in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for m, training in modes:
            object.__setattr__(m, "training", training)


def checked_prompt(tokens: Iterable[int], count: int, model: Module) -> list[int]:
    """Returns the tokens after which `count` are generated. Raises ValueError if there are none, or
    if one is outside a GPT's vocabulary, which only the first stage would notice."""
    array = np.asarray(list(tokens) or special(model, BEGIN)[:1])
    if array.ndim != 1 or not array.size or array.dtype.kind not in "iu":
        raise ValueError(
            f"tokens of shape {array.shape} and type {array.dtype}: give at least one token, as "
            "integers in one dimension"
        )
    if not isinstance(count, int | np.integer) or count < 1:
        raise ValueError(f"max_new_tokens {count!r:.60} must be a whole number of at least 1")
    prompt: list[int] = array.tolist()
    if not isinstance(model, LanguageModel):
        return prompt
    size = model.sizes.vocabulary
    if not 0 <= array.min() <= array.max() < size:
        raise ValueError(
            f"tokens from {array.min():,} to {array.max():,}: the model has only tokens from 0 to "
            f"{size - 1:,}"
        )
    return prompt


def special(model: Module, key: str) -> list[int]:
    """Returns the special tokens of a GPT that was loaded from a folder with JSON files: those that
    begin a text for the key BEGIN, those that end a text for END. Empty for other models."""
    if not isinstance(model, LanguageModel):
        return []
    return special_tokens(model.published, key, model.sizes.vocabulary)


def generated(
    decoder: Decoder,
    prompt: Sequence[int],
    count: int,
    sampling: Sampling,
    size: int | None = None,
    ends: Sequence[int] = (),
) -> Iterator[int]:
    """Yields `count` tokens after the prompt, or fewer if one of the tokens `ends` is drawn. Only
    the first `size` tokens of the vocabulary are drawn. Every rank must iterate to the end."""
    tokens = list(prompt)
    for position in range(len(tokens), len(tokens) + count):
        choose = partial(sampling.choose, position=position)
        tokens.append(decoder.next(tokens, lambda scores: choose(scores[:size])))  # noqa: B023
        yield tokens[-1]
        if tokens[-1] in ends:
            return


def texts(tokens: Iterable[int], tokenizer: Tokenizer) -> Iterator[str]:
    """Converts tokens to text, and yields it piece by piece. A token that is only part of a
    character is held back until the character is complete."""
    pending: list[int] = []
    done = 0  # characters of the pending tokens that were yielded
    for token in tokens:
        pending.append(token)
        text = tokenizer.decode(pending)
        complete = text.removesuffix(INCOMPLETE)
        if len(complete) > done:
            yield complete[done:]
        done = len(complete)
        if complete == text:
            pending, done = [], 0
    yield tokenizer.decode(pending)[done:]


def tokens_of_prompt(
    prompt: str | None, tokenizer: Tokenizer, begin: Sequence[int] = ()
) -> list[int]:
    """Returns the tokens of a prompt. Without a prompt, returns one token with which texts begin:
    the first one in `begin` or, if that is empty, the tokenizer's."""
    if not tokenizer.size:
        raise ValueError("the tokenizer has no tokens; give the one of the model")
    if prompt is None:
        return [*begin[:1]] or [tokenizer.start]
    try:
        prompt.encode()
        return [int(token) for token in tokenizer.encode(prompt)]
    except UnicodeEncodeError as error:
        raise ValueError(
            f"prompt: it is not UTF-8 at position {error.start:,}; give text in UTF-8"
        ) from None
    except ValueError as error:
        raise ValueError(f"prompt: {error}") from None


def tokenizer_for(path: str, given: str | None, sizes: Sizes) -> Tokenizer:
    """Returns the tokenizer in the folder `given`, or the model's own."""
    tokenizer = BPETokenizer(given) if given else own_tokenizer(path)
    if tokenizer is None:
        raise ValueError(
            f"{shown(path)} does not say what its tokens are; give --tokenizer, a folder with "
            "vocab.json and merges.txt, or a tokenizer.json"
        )
    if tokenizer.size > sizes.vocabulary:
        raise ValueError(
            f"the tokenizer has {tokenizer.size:,} tokens, and the model of {shown(path)} only "
            f"{sizes.vocabulary:,}; give the one that it was trained with, as --tokenizer"
        )
    return tokenizer
