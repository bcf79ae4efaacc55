"""The language models of the command line: their sizes, and the formats of their folders."""

import os
from typing import TypeAlias

from nnmpi.nn.gpt import GPT, GPTSizes
from nnmpi.nn.gpt2 import CONFIG, FolderFormat, published_in, read_folder
from nnmpi.nn.llama import Llama, LlamaSizes
from nnmpi.nn.llama_folder import LlamaFormat

LanguageModel: TypeAlias = GPT | Llama
Sizes: TypeAlias = GPTSizes | LlamaSizes
FORMATS: dict[type[Sizes], type[FolderFormat]] = {GPTSizes: FolderFormat, LlamaSizes: LlamaFormat}


def format_of(sizes: Sizes) -> FolderFormat:
    """Returns the format of a folder of a model of these sizes."""
    return FORMATS[type(sizes)](sizes)


def format_in(folder: str | os.PathLike[str]) -> FolderFormat:
    """Returns the format of a folder with a model: that of its model_type, or else GPT-2's."""
    config = published_in(folder)[CONFIG]
    kind = config.get("model_type") if isinstance(config, dict) else None
    known = (known for known in FORMATS.values() if known.kind[0] == kind)
    return read_folder(next(known, FolderFormat), folder)
