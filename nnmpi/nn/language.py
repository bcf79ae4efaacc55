"""The language models of the command line: their sizes, and the formats of their folders."""

import os
from pathlib import Path
from typing import TypeAlias

from nnmpi.nn.gpt import GPT, GPTSizes
from nnmpi.nn.gpt2 import CONFIG, FolderFormat, published_in, read_folder
from nnmpi.nn.llama import Llama, LlamaSizes
from nnmpi.nn.llama_folder import LlamaFormat
from nnmpi.options.quoting import shown

LanguageModel: TypeAlias = GPT | Llama
Sizes: TypeAlias = GPTSizes | LlamaSizes
FORMATS: dict[type[Sizes], type[FolderFormat]] = {GPTSizes: FolderFormat, LlamaSizes: LlamaFormat}


def format_of(sizes: Sizes) -> FolderFormat:
    """Returns the format of a folder of a model of these sizes."""
    return FORMATS[type(sizes)](sizes)


def format_in(folder: str | os.PathLike[str]) -> FolderFormat:
    """Returns the format of a folder with a model: that of its model_type, or GPT-2's if it has
    none; raises ValueError for others."""
    config, path = published_in(folder)[CONFIG], shown(Path(folder, CONFIG))
    known = {form.kind[0]: form for form in FORMATS.values()}
    if not isinstance(config, dict):
        raise ValueError(f"{path} is no JSON object: give one with model_type {' or '.join(known)}")
    kind = config.get("model_type")
    if kind is not None and str(kind) not in known:
        raise ValueError(f"{path} has model_type {shown(kind, 60)}: give {' or '.join(known)}")
    return read_folder(known.get(str(kind), FolderFormat), folder)
