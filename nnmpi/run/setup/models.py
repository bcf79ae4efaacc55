"""Models of --model: a function by name, or a gpt by its sizes."""

import json
import re
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from nnmpi.data import Dataset
from nnmpi.data.inputs import is_index
from nnmpi.io.files import loading
from nnmpi.io.files.folders import PUBLISHED, is_folder, sizes_in
from nnmpi.nn import Module, gpt2
from nnmpi.nn.gpt import GPTSizes
from nnmpi.nn.language import LanguageModel, Sizes, format_of
from nnmpi.nn.llama import Llama, LlamaSizes
from nnmpi.nn.llama_folder import LlamaFormat
from nnmpi.nn.models import MODELS, mlp
from nnmpi.nn.state import PLAIN
from nnmpi.nn.tensor_files import sources_in
from nnmpi.options import user_code
from nnmpi.options.config import Config
from nnmpi.options.quoting import quoted, shown
from nnmpi.options.user_files import parsed, refusing_others

Build = Callable[[], Module]

SIZE = "0*[1-9][0-9]{0,8}"


def resolved(config: Config, build: Build | None) -> tuple[Config, Build | None]:
    """The config, and the function that makes its model or None. For a folder of --load the config
    names the folder's model, and the function makes it.

    Raises ValueError for a dropout that the model cannot have.
    """
    is_own = build is not None or user_code.is_named(config.model)
    if config.load and is_folder(config.load) and not is_own:
        is_named = config.model != Config().model
        sizes = check_named(config, config.load) if is_named else sizes_in(config.load)
        files = gpt2.published_in(config.load)
        config = replace(config, model=sizes.model)
        build = partial(format_of(sizes).model, config.dropout, files)
    if config.dropout and (is_own or not config.model.startswith("gpt")):
        raise ValueError(
            f"dropout {config.dropout} with model {shown(config.model)}: it is an option of gpt "
            "models, others have nn.Dropout layers; leave it out"
        )
    return config, build


def check_named(config: Config, folder: str) -> Sizes:
    """The sizes of the model in a folder; raises ValueError unless --model has the same sizes."""
    sizes = sizes_in(folder)
    named = sizes_named(config.model)
    if named is None or named.model != sizes.model:
        raise ValueError(
            f"model {shown(config.model)} with --load {shown(folder)}, whose config.json has "
            f"{sizes.layers} layers, {sizes.heads} heads and width {sizes.width}: leave --model "
            f"out, or give --model {sizes.model}"
        )
    return sizes


def builder(config: Config, dataset: Dataset) -> Build:
    """The function that makes the model of `--model`; a gpt:... gets the vocabulary of the data."""
    spec = config.model
    if spec in MODELS:
        return MODELS[spec]
    name, colon, argument = spec.partition(":")
    if name == "mlp" and colon:
        widths = argument.split("-")
        if len(widths) < 2 or not all(re.fullmatch(SIZE, w) for w in widths):
            raise ValueError(
                f"model {quoted(spec)}: give an mlp as mlp:784-1024-10, with two widths or more "
                "from 1 on and below 10^9"
            )
        return lambda: mlp(*map(int, widths))
    if spec == "gpt2":
        return partial(format_of(gpt2.GPT2).model, config.dropout)
    if name in NAMED and colon:
        return partial(model_of, spec, dataset, config.dropout)
    if not user_code.is_named(spec):
        sized = "mlp:784-1024-10", "gpt2", "gpt:4x4x128", "llama:4x4x128:2"
        known = ", ".join([*MODELS, *sized, "package.module:function"])
        raise ValueError(f"model {quoted(spec)} is unknown; choose one of {known}")
    function: Build = user_code.imported(spec, "model")
    return function


def model_of(spec: str, dataset: Dataset, dropout: float = 0.0) -> Module:
    """A gpt or a llama of LAYERSxHEADSxWIDTH for windows of tokens."""
    sizes = sizes_named(spec)
    if sizes is None:
        kind = spec.partition(":")[0]
        raise ValueError(
            f"model {quoted(spec)}: give a {kind} as {kind}:LAYERSxHEADSxWIDTH{NAMED[kind][2]}, "
            f"such as {kind}:4x4x128, numbers of at least 1 and below 10^9"
        )
    sizes = sizes._replace(vocabulary=dataset.classes, positions=_window(dataset, f"model {spec}"))
    model: Module = format_of(sizes).model(dropout)
    return model


NAMED: dict[str, tuple[type[Sizes], str, str]] = {
    "gpt": (GPTSizes, f"(:{SIZE})?", "[:MLP]"),
    "llama": (LlamaSizes, f"(:{SIZE}){{0,2}}", "[:KV[:MLP]]"),
}
"""By kind of model, the type of its sizes, and the pattern and description of the name's end."""


def sizes_named(model: str) -> Sizes | None:
    """The sizes of gpt2, gpt:... or llama:..., with 1 token and position; None for others."""
    kind, _, argument = (gpt2.GPT2.model if model == "gpt2" else model).partition(":")
    of_sizes, end, _ = NAMED.get(kind, (GPTSizes, "", ""))
    if kind not in NAMED or not re.fullmatch(f"{SIZE}x{SIZE}x{SIZE}{end}", argument):
        return None
    layers, heads, width, *others = map(int, re.split("[x:]", argument))
    values: list[Any] = [layers, heads, width, 1, 1, *others]
    return of_sizes(*values)


def _window(dataset: Dataset, model: str) -> int:
    """The number of tokens in a window; raises ValueError, naming `model`, if the data has none."""
    x = dataset.train.x
    if isinstance(x, tuple | dict) or x.ndim != 2 or not is_index(x):
        raise ValueError(
            f"{model} takes windows of tokens, and data {dataset.name} has none: use "
            "--data text, text:FILE or tokens:FILE.npy"
        )
    return int(x.shape[1])


def metadata_of(model: Module, config: Config) -> dict[str, str]:
    """The metadata of a model in its file: its name, and the facts of its folder."""
    if not isinstance(model, LanguageModel):
        return {"model": config.model}
    files = {**model.published}
    if isinstance(model, Llama):  # its tensors do not tell all of its sizes
        files.setdefault(gpt2.CONFIG, format_of(model.sizes).config({}))
    return {"model": model.sizes.model} | ({PUBLISHED: json.dumps(files)} if files else {})


def saved_special_tokens(path: str, sizes: Sizes) -> tuple[list[int], list[int]]:
    """The tokens that begin a text and those that end it, of a model in a file that --save wrote or
    in a folder."""
    files = gpt2.published_in(path) if is_folder(path) else _published(path)
    keys = gpt2.BEGIN, gpt2.END
    begin, end = (gpt2.special_tokens(files, key, sizes.vocabulary) for key in keys)
    return begin, end


def _published(path: str) -> dict[str, Any]:
    """The JSON files of a folder that the metadata of a file of --save have."""
    text = loading.read_metadata(path).get(PUBLISHED, "{}")
    with refusing_others(f"cannot load {shown(path)}: {PUBLISHED}", "take an intact copy"):
        return dict(parsed(json.loads, text))


def saved_sizes(path: str) -> Sizes:
    """The sizes of a gpt or a llama in a file that --save wrote or in a folder; raises ValueError
    for other models."""
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


def check_tokens(model: Module, config: Config, dataset: Dataset) -> None:
    """Raises ValueError if a gpt has fewer positions than a window, or a smaller vocabulary than
    the data."""
    if not isinstance(model, LanguageModel):
        return
    sizes, window = model.sizes, _window(dataset, "it")
    if window > sizes.positions:
        raise ValueError(
            f"it has {sizes.positions:,} positions, and data {dataset.name} "
            f"has windows of {window:,} tokens; give --context {sizes.positions} or less"
        )
    if dataset.classes > sizes.vocabulary:
        raise ValueError(
            f"it has a vocabulary of {sizes.vocabulary:,}, and data "
            f"{dataset.name} has {dataset.classes:,} tokens; use the tokenizer of the model"
        )


def check_stages(model: Module, pp: int) -> None:
    """Raises ValueError if the model cannot generate text in a pipeline: its stages need sequences
    of one length."""
    if pp > 1 and not isinstance(model, LanguageModel):
        raise ValueError(
            f"stages of {type(model).__name__} take sequences of one length, and generated text "
            f"grows: use pp 1 instead of {pp}, or an nn.GPT or nn.Llama"
        )
