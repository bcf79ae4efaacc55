"""Models of --model: a function by name, or a gpt by its sizes."""

import json
import re
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

from nnmpi.data import Dataset
from nnmpi.data.inputs import is_index
from nnmpi.io.files import loading
from nnmpi.io.files.folders import PUBLISHED, TOKENIZER, is_folder, sizes_in
from nnmpi.nn import GPT, Module
from nnmpi.nn.gpt2 import (
    BEGIN,
    EMBEDDING,
    END,
    GPT2,
    POSITIONS,
    PREFIX,
    Sizes,
    check_sources,
    published_in,
    sizes_of,
    special_tokens,
)
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
        files = published_in(config.load)
        return replace(config, model=sizes.model), partial(GPT, *sizes, config.dropout, files)
    if config.dropout and (is_own or not config.model.startswith("gpt")):
        raise ValueError(
            f"dropout {config.dropout} with model {shown(config.model)}: it is an option of gpt "
            "models, others have nn.Dropout layers; leave it out"
        )
    return config, build


def check_named(config: Config, folder: str) -> Sizes:
    """The sizes of the model in a folder; raises ValueError unless --model has the same sizes."""
    sizes = sizes_in(folder)
    if _named(config.model) != sizes[:3]:
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
                f"model {quoted(spec)}: give an mlp as mlp:784-1024-10, with at least two widths, "
                "each at least 1 and below 10^9"
            )
        return lambda: mlp(*map(int, widths))
    if spec == "gpt2":
        return partial(GPT, *GPT2, config.dropout)
    if name == "gpt" and colon:
        return partial(gpt_of, argument, dataset, config.dropout)
    if not user_code.is_named(spec):
        known = ", ".join(
            [*MODELS, "mlp:784-1024-10", "gpt2", "gpt:4x4x128", "package.module:function"]
        )
        raise ValueError(f"model {quoted(spec)} is unknown; choose one of {known}")
    function: Build = user_code.imported(spec, "model")
    return function


def gpt_of(argument: str, dataset: Dataset, dropout: float = 0.0) -> Module:
    """A gpt of LAYERSxHEADSxWIDTH for windows of tokens."""
    sizes = _split(argument)
    if not sizes:
        raise ValueError(
            f"model {quoted(f'gpt:{argument}')}: give a gpt as gpt:LAYERSxHEADSxWIDTH, such as "
            "gpt:4x4x128, three numbers of at least 1 and below 10^9"
        )
    layers, heads, width = sizes
    return GPT(
        layers, heads, width, dataset.classes, _window(dataset, f"model gpt:{argument}"), dropout
    )


def _split(argument: str) -> tuple[int, ...]:
    """The three numbers of LAYERSxHEADSxWIDTH; empty if the text has another form."""
    if not re.fullmatch(f"{SIZE}x{SIZE}x{SIZE}", argument):
        return ()
    return tuple(map(int, argument.split("x")))


def _named(model: str) -> tuple[int, ...]:
    """The layers, heads and width of gpt:LAYERSxHEADSxWIDTH and of gpt2; empty for other names."""
    if model == "gpt2":
        return GPT2[:3]
    kind, _, argument = model.partition(":")
    return _split(argument) if kind == "gpt" else ()


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
    """The metadata of a model in its file: its name, and for a gpt the facts of its folder."""
    if not isinstance(model, GPT):
        return {"model": config.model}
    files = {PUBLISHED: json.dumps(dict(model.published))} if model.published else {}
    return {"model": sizes_of(model).model, **files}


def language_of(dataset: Dataset) -> dict[str, str]:
    """The metadata of the tokenizer, for a data set of text; otherwise empty."""
    return {} if dataset.language is None else {TOKENIZER: dataset.language.tokenizer}


def saved_special_tokens(path: str, sizes: Sizes) -> tuple[list[int], list[int]]:
    """The tokens that begin a text and those that end it, of a gpt in a file that --save wrote or
    in a folder."""
    if is_folder(path):
        files = published_in(path)
    else:
        text = loading.read_metadata(path).get(PUBLISHED, "{}")
        with refusing_others(f"cannot load {shown(path)}: {PUBLISHED}", "take an intact copy"):
            files = dict(parsed(json.loads, text))
    begin, end = (special_tokens(files, key, sizes.vocabulary) for key in (BEGIN, END))
    return begin, end


def saved_sizes(path: str) -> Sizes:
    """The sizes of a gpt in a file that --save wrote or in a folder; raises ValueError for other
    models."""
    if is_folder(path):
        return sizes_in(path)
    name = loading.read_metadata(path).get("model", "")
    numbers = _named(name)
    sources = sources_in(Path(path), PLAIN)
    if PREFIX + EMBEDDING in sources:
        raise ValueError(
            f"cannot load {shown(path)}: it is from a folder of GPT-2, where another file has the "
            "sizes; give the folder"
        )
    if not numbers or not {EMBEDDING, POSITIONS} <= sources.keys():
        raise ValueError(
            f"cannot load {shown(path)}: its model is {shown(name) if name else 'not named'}, and "
            "only a complete gpt generates text; give one that --save wrote, or a folder of GPT-2"
        )
    layers, heads, width = numbers
    vocabulary, positions = (next(iter(sources[n].shape), 0) for n in (EMBEDDING, POSITIONS))
    sizes = Sizes(layers, heads, width, vocabulary, positions)
    check_sources(path, sizes, sources)
    return sizes


def check_tokens(model: Module, config: Config, dataset: Dataset) -> None:
    """Raises ValueError if a gpt has fewer positions than a window, or a smaller vocabulary than
    the data."""
    if not isinstance(model, GPT):
        return
    sizes, window = sizes_of(model), _window(dataset, "it")
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
    if pp > 1 and not isinstance(model, GPT):
        raise ValueError(
            f"stages of {type(model).__name__} take sequences of one length, and generated text "
            f"grows: use pp 1 instead of {pp}, or an nn.GPT"
        )
