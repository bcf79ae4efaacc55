"""The language models of the command line: sizes, and formats of folders."""

import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeAlias

from nnmpi.addons.language.models.gpt import GPT, GPTSizes
from nnmpi.addons.language.models.gpt2 import CONFIG, GPT2, FolderFormat, published_in, read_folder
from nnmpi.addons.language.models.llama import Llama, LlamaSizes
from nnmpi.addons.language.models.llama_folder import LlamaFormat
from nnmpi.nn.models import SIZE
from nnmpi.options.quoting import shown

LanguageModel: TypeAlias = GPT | Llama
Sizes: TypeAlias = GPTSizes | LlamaSizes
FORMATS: dict[type[Sizes], type[FolderFormat]] = {GPTSizes: FolderFormat, LlamaSizes: LlamaFormat}

NAMED: dict[str, tuple[type[Sizes], str, str]] = {
    "gpt": (GPTSizes, f"(:{SIZE})?", "[:MLP]"),
    "llama": (LlamaSizes, f"(:{SIZE}){{0,2}}", "[:KV[:MLP]]"),
}
"""By kind of model, the type of its sizes, and the pattern and description of the name's end."""


def sizes_named(model: str) -> Sizes | None:
    """Returns the sizes that a name such as gpt2, gpt:... or llama:... says, or None for other
    names. The numbers of tokens and positions are 1, to be replaced."""
    kind, _, argument = (GPT2.model if model == "gpt2" else model).partition(":")
    of_sizes, end, _ = NAMED.get(kind, (GPTSizes, "", ""))
    if kind not in NAMED or not re.fullmatch(f"{SIZE}x{SIZE}x{SIZE}{end}", argument):
        return None
    layers, heads, width, *others = map(int, re.split("[x:]", argument))
    values: list[Any] = [layers, heads, width, 1, 1, *others]
    return of_sizes(*values)


def sizes_of(values: Sequence[Any]) -> Sizes:
    """Returns the GPT or Llama sizes that have these values, as a checkpoint stores them; the
    number of values tells which. Raises ValueError if it fits neither."""
    for of_sizes in FORMATS:
        if len(values) == len(of_sizes._fields):
            return of_sizes(*values)
    raise ValueError(f"{len(values)} sizes are not those of a GPT or a Llama")


def format_of(sizes: Sizes) -> FolderFormat:
    """Returns the format of the folder in which a model of these sizes is saved."""
    return FORMATS[type(sizes)](sizes)


def format_in(folder: str | os.PathLike[str]) -> FolderFormat:
    """Returns the format of the model in a folder by the model_type in config.json, by default
    GPT-2; raises ValueError for an unknown type."""
    config, path = published_in(folder)[CONFIG], shown(Path(folder, CONFIG))
    known = {form.kind[0]: form for form in FORMATS.values()}
    if not isinstance(config, dict):
        raise ValueError(f"{path} is no JSON object: give one with model_type {' or '.join(known)}")
    kind = config.get("model_type")
    if kind is not None and str(kind) not in known:
        raise ValueError(f"{path} has model_type {shown(kind, 60)}: give {' or '.join(known)}")
    return read_folder(known.get(str(kind), FolderFormat), folder)
