"""The data set of a run, the standardiser of its samples, and its tokenizer, which has to be the
one that a loaded model was trained with."""

import os
from typing import Any

from nnmpi.comm import Comm
from nnmpi.data import Dataset, Standardiser, from_arrays, load
from nnmpi.data.tokenizer import (
    BPETokenizer,
    Tokenizer,
    has_tokenizer,
    in_words,
    located,
    tokenizer_of,
    vocabulary_of,
)
from nnmpi.io.files import loading
from nnmpi.io.files.folders import TOKENIZER, is_folder
from nnmpi.nn.losses import ClassLoss
from nnmpi.options.config import Config
from nnmpi.options.quoting import quoted, shown
from nnmpi.parallel.step.objective import Criterion


def own_tokenizer(path: str) -> Tokenizer | None:
    """The tokenizer of a saved model, from its metadata or its folder; None if it has none."""
    described = loading.read_metadata(path).get(TOKENIZER)
    if not described:
        return BPETokenizer(path) if is_folder(path) and has_tokenizer(path) else None
    try:
        return tokenizer_of(located(described, path if is_folder(path) else os.path.dirname(path)))
    except ValueError as error:
        raise ValueError(f"cannot load {shown(path)}: {error}") from None


def tokenizer_of_text(config: Config) -> str | Tokenizer | None:
    """The tokenizer for a text of --data: the one that is given, otherwise that of the model of
    --load.

    It is None if the model has none, or takes only a part of the file: then tokens are characters.
    """
    is_text = config.data.partition(":")[0] == "text"
    if config.tokenizer or not is_text or not config.load or config.load_partial:
        return config.tokenizer
    return own_tokenizer(config.load)


def check_vocabulary(config: Config, dataset: Dataset) -> None:
    """Raises ValueError if the model of --load was trained on other tokens than those of the data.

    The sizes may match nevertheless, and each number would then mean a different token.
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
            f"{dataset.name} has {in_words(given)}; give the model's "
            "tokenizer with --tokenizer, or the text that it was trained on"
        )


# ---- data sets


def dataset_of(config: Config, given: Dataset | tuple[Any, ...] | None, loss: Criterion) -> Dataset:
    """The data set that users gave, whole or as arrays; otherwise the one that the config names."""
    ignored = loss.ignore_index if isinstance(loss, ClassLoss) else None
    if isinstance(given, Dataset):
        return given
    if given is not None:
        is_tuple = isinstance(given, tuple | list)
        if not is_tuple or len(given) not in (2, 4):
            kind = f"{len(given)} arrays" if is_tuple else f"type {type(given).__name__}"
            raise ValueError(
                f"data has {kind}; give (x, y) or (x, y, x_test, y_test), or name a data set in "
                "Config"
            )
        x, y, *test = given
        x_test, y_test = test or (None, None)
        return from_arrays(x, y, x_test, y_test, seed=config.seed, ignore_index=ignored)
    return load(
        config.data,
        data_dir=config.data_dir,
        download=config.download,
        seed=config.seed,
        ignore_index=ignored,
        context=config.context,
        tokenizer=tokenizer_of_text(config),
    )


def standardiser_of(config: Config, dataset: Dataset, comm: Comm) -> Standardiser:
    """The standardiser that the config asks for. `auto` takes the one in the file of --load, if
    there is one, otherwise that of the training samples."""
    if config.load and comm.rank == comm.node()[0]:  # the file is read whole once per node
        loading.check_content(config.load)
    if config.standardise != "auto":
        return _of_numbers(config.standardise, dataset)
    if not config.load:
        return Standardiser.of(dataset.train)
    metadata = loading.read_metadata(config.load)
    if not metadata.keys() & {"mean", "std"}:
        return Standardiser.of(dataset.train)
    try:
        return Standardiser.from_metadata(metadata).shaped_for(dataset.train.x)
    except ValueError as error:
        raise ValueError(
            f"--load {config.load} and data {dataset.name}: {error}, or set --standardise"
        ) from None


def _of_numbers(spec: str, dataset: Dataset) -> Standardiser:
    try:
        mean, std = (0.0, 1.0) if spec == "none" else map(float, spec.split(","))
        return Standardiser.of_numbers(dataset.train.x, mean, std)
    except ValueError:
        raise ValueError(
            f"standardise {quoted(spec)} is not auto, none, or MEAN,STD: two numbers such as "
            "0.13,0.31, of which the second is above 0"
        ) from None
