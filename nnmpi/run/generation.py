"""Text from a model: tokens one after the other, and text as soon as it is complete."""

from collections.abc import Iterable, Iterator, Sequence
from functools import partial

from nnmpi.data.tokenizer import BPETokenizer, Tokenizer
from nnmpi.nn.gpt2 import Sizes
from nnmpi.quoting import shown
from nnmpi.run.decoder import Decoder
from nnmpi.run.sampling import Sampling
from nnmpi.run.vocabulary import own_tokenizer

INCOMPLETE = "\N{REPLACEMENT CHARACTER}"


def generated(
    decoder: Decoder, prompt: Sequence[int], count: int, sampling: Sampling, size: int
) -> Iterator[int]:
    """So many tokens behind those of the prompt, of the first `size` ones; every rank iterates."""
    tokens = list(prompt)
    for position in range(len(tokens), len(tokens) + count):
        choose = partial(sampling.choose, position=position)
        tokens.append(decoder.next(tokens, lambda scores: choose(scores[:size])))  # noqa: B023
        yield tokens[-1]


def texts(tokens: Iterable[int], tokenizer: Tokenizer) -> Iterator[str]:
    """Their text, piece by piece: tokens that are parts of a character wait for the others."""
    pending: list[int] = []
    done = 0  # characters of theirs that have been given
    for token in tokens:
        pending.append(token)
        text = tokenizer.decode(pending)
        whole = text.removesuffix(INCOMPLETE)
        if len(whole) > done:
            yield whole[done:]
        done = len(whole)
        if whole == text:
            pending, done = [], 0
    yield tokenizer.decode(pending)[done:]


def tokenizer_for(path: str, given: str | None, sizes: Sizes) -> Tokenizer:
    """The tokenizer that is given, or else that of the model: in its metadata, or in its folder."""
    found = BPETokenizer(given) if given else own_tokenizer(path)
    if found is None:
        raise ValueError(
            f"{shown(path)} does not say what its tokens are; give --tokenizer, a folder with "
            "vocab.json and merges.txt, or a tokenizer.json"
        )
    if found.size > sizes.vocabulary:
        raise ValueError(
            f"the tokenizer has {found.size:,} tokens, and the model of {shown(path)} only "
            f"{sizes.vocabulary:,}; give the one that it was trained with, as --tokenizer"
        )
    return found
