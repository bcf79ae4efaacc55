"""The language models of the command line: their sizes, and the formats of their folders."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TypeAlias

from nnmpi.data.files import read_json
from nnmpi.nn.gpt import GPT, GPTSizes
from nnmpi.nn.gpt2 import GPT2Format
from nnmpi.nn.llama import Llama, LlamaSizes
from nnmpi.nn.llama_folder import LlamaFormat
from nnmpi.nn.published import CONFIG, REMEDY, FolderFormat, read_folder

LanguageModel: TypeAlias = GPT | Llama
Sizes: TypeAlias = GPTSizes | LlamaSizes

FORMATS: Mapping[type[Sizes], type[FolderFormat]] = {GPTSizes: GPT2Format, LlamaSizes: LlamaFormat}
"""The format of the folders of a model, by the type of its sizes."""


def format_of(sizes: Sizes) -> FolderFormat:
    """Returns the format of a folder of a model of these sizes."""
    return FORMATS[type(sizes)](sizes)


def format_in(folder: str | os.PathLike[str]) -> FolderFormat:
    """Returns the format of a folder with a model: that of its model_type, or else GPT-2's."""
    config = read_json(Path(folder, CONFIG), REMEDY)
    kind = config.get("model_type") if isinstance(config, dict) else None
    found = (format_class for format_class in FORMATS.values() if format_class.kind == kind)
    return read_folder(next(found, GPT2Format), folder)
