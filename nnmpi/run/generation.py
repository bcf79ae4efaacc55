"""Text from a model: tokens one after the other, and text as soon as it is complete."""

from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path

from nnmpi.data.tokenizer import BPETokenizer, Tokenizer, tokenizer_of
from nnmpi.nn.gpt2 import Sizes
from nnmpi.quoting import shown
from nnmpi.run.decoder import Decoder
from nnmpi.run.files import loading
from nnmpi.run.files.folders import is_folder
from nnmpi.run.models import TOKENIZER
from nnmpi.run.sampling import Sampling

LONGEST = 4
"""Tokens of a character: bytes of UTF-8."""

INCOMPLETE = "\N{REPLACEMENT CHARACTER}"
OF_TOKENIZERS = ("tokenizer.json", "vocab.json")


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
    for token in tokens:
        pending.append(token)
        text = tokenizer.decode(pending)
        if not text.endswith(INCOMPLETE) or len(pending) == LONGEST:
            yield text
            pending = []
    yield tokenizer.decode(pending)


def tokenizer_for(path: str, given: str | None, sizes: Sizes) -> Tokenizer:
    """The tokenizer that is given, or else that of the model: in its metadata, or in its folder."""
    described = None if given else loading.read_metadata(path).get(TOKENIZER)
    in_folder = is_folder(path) and any(Path(path, name).is_file() for name in OF_TOKENIZERS)
    if described:
        found = tokenizer_of(described)
    elif given or in_folder:
        found = BPETokenizer(given or path)
    else:
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
