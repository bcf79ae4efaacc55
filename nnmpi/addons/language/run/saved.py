"""Reads sizes, tokenizer and special tokens saved with a language model."""

import json
import os
from pathlib import Path
from typing import Any

from nnmpi.addons.language.data.tokenizer import (
    BPETokenizer,
    Tokenizer,
    has_tokenizer,
    in_words,
    located,
    tokenizer_of,
    vocabulary_of,
)
from nnmpi.addons.language.models import gpt2
from nnmpi.addons.language.models.folders import Sizes, format_of, sizes_named
from nnmpi.addons.language.models.llama import LlamaSizes
from nnmpi.addons.language.models.llama_folder import LlamaFormat
from nnmpi.addons.language.saved_folders import PUBLISHED, sizes_in
from nnmpi.data import Dataset
from nnmpi.data.dataset import TOKENIZER
from nnmpi.io.files import loading
from nnmpi.io.files.model_files import is_folder
from nnmpi.nn.state import PLAIN
from nnmpi.nn.tensor_files import sources_in
from nnmpi.options.config import Config
from nnmpi.options.quoting import shown
from nnmpi.options.user_files import parsed, refusing_others

# ---- sizes, and tokens that begin and end a text


def saved_special_tokens(path: str, sizes: Sizes) -> tuple[list[int], list[int]]:
    """Returns the tokens that begin, and that end, a saved model's text."""
    files = gpt2.published_in(path) if is_folder(path) else _published(path)
    keys = gpt2.BEGIN, gpt2.END
    begin, end = (gpt2.special_tokens(files, key, sizes.vocabulary) for key in keys)
    return begin, end


def _published(path: str) -> dict[str, Any]:
    """Returns the JSON of the folder from which a saved model came."""
    text = loading.read_metadata(path).get(PUBLISHED, "{}")
    with refusing_others(f"cannot load {shown(path)}: {PUBLISHED}", "take an intact copy"):
        return dict(parsed(json.loads, text))


def saved_sizes(path: str) -> Sizes:
    """Returns the sizes (layers, heads, width and others) of a gpt or a llama that is saved in a
    folder or in a file of --save; raises ValueError for other models."""
    if is_folder(path):
        return sizes_in(path)
    name = loading.read_metadata(path).get("model", "")
    sizes = sizes_named(name)
    sources = sources_in(Path(path), PLAIN)
    if gpt2.PREFIX + gpt2.EMBEDDING in sources:
        raise ValueError(
            f"cannot load {shown(path)}: it is from a folder of GPT-2, where another file has the "
            "sizes; give the folder"
        )
    if isinstance(sizes, LlamaSizes):
        form = LlamaFormat.of(_published(path).get(gpt2.CONFIG), Path(path))
        form.check_sources(path, sources)
        stated: LlamaSizes = form.sizes
        return stated
    tables = gpt2.FolderFormat.tables
    if sizes is None or not tables.keys() <= sources.keys():
        raise ValueError(
            f"cannot load {shown(path)}: its model is {shown(name) if name else 'not named'}, and "
            "only a complete gpt or llama generates text; give one that --save wrote, or a folder"
        )
    vocabulary, positions = (next(iter(sources[n].shape), 0) for n in tables)
    sizes = sizes._replace(vocabulary=vocabulary, positions=positions)
    format_of(sizes).check_sources(path, sources)
    return sizes


# ---- tokenizers


def own_tokenizer(path: str) -> Tokenizer | None:
    """Returns a saved model's tokenizer, from metadata or folder, or None."""
    described = loading.read_metadata(path).get(TOKENIZER)
    if not described:
        return BPETokenizer(path) if is_folder(path) and has_tokenizer(path) else None
    try:
        return tokenizer_of(located(described, path if is_folder(path) else os.path.dirname(path)))
    except ValueError as error:
        raise ValueError(f"cannot load {shown(path)}: {error}") from None


def check_vocabulary(config: Config, dataset: Dataset) -> None:
    """Raises ValueError if the model of --load was trained on other tokens than those of the data:
    even if the numbers of tokens match, each number would mean a different token."""
    if not config.load or config.load_partial:
        return
    assert dataset.language is not None
    trained = loading.read_metadata(config.load).get(TOKENIZER)
    given = dataset.language.tokenizer
    try:
        is_other = trained and vocabulary_of(trained) != vocabulary_of(given)
    except ValueError as error:
        raise ValueError(f"--load {shown(config.load)}: {error}") from None
    if trained and is_other:
        raise ValueError(
            f"--load {shown(config.load)} was trained on {in_words(trained)}, and data "
            f"{dataset.name} has {in_words(given)}; give the model's "
            "tokenizer with --tokenizer, or the text that it was trained on"
        )
