"""Generates tokens one after the other, drawn by seed and position, and converts them to text."""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import NamedTuple, Self

import numpy as np

from nnmpi.arrays import backend, keyed
from nnmpi.data.tokenizer import BPETokenizer, Tokenizer
from nnmpi.nn import Module
from nnmpi.nn.gpt2 import BEGIN, END, special_tokens
from nnmpi.nn.language import LanguageModel, Sizes
from nnmpi.options.quoting import shown
from nnmpi.options.terms import ABOVE_0, FROM_0, NUMBER_FROM_0, Allowed
from nnmpi.parallel.layout import Layout
from nnmpi.parallel.model.parts import ModelPart
from nnmpi.run.text.decoder import NO_LIMIT, Decoder
from nnmpi.run.text.saved import own_tokenizer

UP_TO_1 = Allowed("above 0 and at most 1", lambda p: ABOVE_0.has(p) and p <= 1)
OPTIONS: dict[str, tuple[Allowed, str]] = {
    "temperature": (NUMBER_FROM_0, "divides the scores; 0: always the best token"),
    "top_k": (FROM_0, "draw from this many of the best tokens; 0: all"),
    "top_p": (UP_TO_1, "draw from the best tokens that together have this probability"),
    "seed": (FROM_0, "seed of the draws"),
}
"""The allowed range of each option, and the help of its flag."""


class Sampling(NamedTuple):
    """How the next token is drawn: p ~ exp(scores / temperature), and 0 outside the best tokens.

    temperature   0: always the best token
    top_k         the number of best tokens, with all that score like the last of them; 0: all
    top_p         only the best tokens that together have this probability; at least one
    """

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    seed: int = 0

    def checked(self) -> Self:
        """Returns itself; raises ValueError for numbers that are out of range."""
        for name, value in self._asdict().items():
            within, _ = OPTIONS[name]
            if not within.has(value):
                raise ValueError(f"{name} {value!r:.60} must be {within.words}")
        return self

    def probabilities(self, scores: np.ndarray) -> np.ndarray:
        """The probability of each token, float64; for a temperature above 0."""
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
        """The token drawn for a position of the text; the draw depends on position and seed
        alone."""
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
    """The tokens that a model writes after these, drawn by seed and position: max_new_tokens of
    them, or fewer if the model was loaded from a folder of GPT-2 with an eos_token_id, which ends
    the text.

    The model takes tokens (N, T) and returns scores (N, vocabulary, T) of the next one, as `nn.GPT`
    does. It runs in evaluation mode, and is left as it was. It gets the last `context` tokens of a
    longer text, by default as many as a GPT has positions. Without tokens a text begins after the
    bos_token_id of the folder. For a model that a Trainer has cut among ranks, use
    `trainer.generate`.

    temperature: divides the scores; 0: always the best token
    top_k, top_p: draw from this many of the best, or from the best with this total probability
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
    """Puts a model into evaluation mode within the block; afterwards each module has its old
    mode."""
    modes = [(m, m.training) for m in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for m, training in modes:
            object.__setattr__(m, "training", training)


def checked_prompt(tokens: Iterable[int], count: int, model: Module) -> list[int]:
    """The tokens after which `count` are generated; raises ValueError if there are none, or if a
    GPT does not have one of them (in a pipeline only the ranks of the first stage would notice)."""
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
    """The tokens that begin or end a text of a GPT, as the key (BEGIN, END) of its folder says;
    empty for other models."""
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
    """Generates `count` tokens after the prompt, fewer if one of `ends` comes first; `size` limits
    them to the first of the vocabulary. Every rank iterates."""
    tokens = list(prompt)
    for position in range(len(tokens), len(tokens) + count):
        choose = partial(sampling.choose, position=position)
        tokens.append(decoder.next(tokens, lambda scores: choose(scores[:size])))  # noqa: B023
        yield tokens[-1]
        if tokens[-1] in ends:
            return


def texts(tokens: Iterable[int], tokenizer: Tokenizer) -> Iterator[str]:
    """The text of tokens, piece by piece: tokens that are parts of a character wait for the rest of
    it."""
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
    """The tokens of a prompt; without one, the token that begins a text: the first of `begin`, or
    else that of the tokenizer."""
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
    """The tokenizer in the folder `given`, or else that of the model, from its metadata or its
    folder."""
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
