"""Which tokens a model was trained on: a text that it goes on with has to have the same ones."""

import os

from nnmpi.data import Dataset
from nnmpi.data.tokenizer import (
    BPETokenizer,
    Tokenizer,
    has_tokenizer,
    in_words,
    located,
    tokenizer_of,
    vocabulary_of,
)
from nnmpi.options.config import Config
from nnmpi.options.quoting import shown
from nnmpi.run.files import loading
from nnmpi.run.files.folders import TOKENIZER, is_folder


def own_tokenizer(path: str) -> Tokenizer | None:
    """The tokenizer of a model: in its metadata, or in its folder; None if it has none."""
    described = loading.read_metadata(path).get(TOKENIZER)
    if not described:
        return BPETokenizer(path) if is_folder(path) and has_tokenizer(path) else None
    try:
        return tokenizer_of(located(described, path if is_folder(path) else os.path.dirname(path)))
    except ValueError as error:
        raise ValueError(f"cannot load {shown(path)}: {error}") from None


def tokenizer_of_text(config: Config) -> str | Tokenizer | None:
    """The tokenizer for a text of --data: the one that is given, else that of the model of --load.

    It is none where the model has none, or takes a part of the file: then characters of the text.
    """
    is_text = config.data.partition(":")[0] == "text"
    if config.tokenizer or not is_text or not config.load or config.load_partial:
        return config.tokenizer
    return own_tokenizer(config.load)


def check_vocabulary(config: Config, dataset: Dataset) -> None:
    """Raises ValueError if the model of --load was trained on other tokens than those of the data.

    The sizes may fit nevertheless, and each number would then mean another token.
    """
    if not config.load or config.load_partial or dataset.language is None:
        return
    trained = loading.read_metadata(config.load).get(TOKENIZER)
    given = dataset.language.tokenizer
    try:
        is_other = trained and vocabulary_of(trained) != vocabulary_of(given)
    except ValueError as error:
        raise ValueError(f"--load {shown(config.load)}: {error}") from None
    if trained and is_other:
        raise ValueError(
            f"--load {shown(config.load)} was trained on {in_words(trained)}, and data "
            f"{dataset.name} has {in_words(given)}; give --tokenizer "
            "with that of the model, or the text that it was trained on"
        )
