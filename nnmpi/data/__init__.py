"""Data sets by name, augmentation, and the loader, which gives each rank its samples of a global
batch. Not here: images and their download (`addons.images`), text (`addons.language`), PyTorch's
`DataLoader` of single samples (`nnmpi.utils.data`)."""

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from nnmpi import addons
from nnmpi.addons import finder
from nnmpi.data import embedded, npz, synthetic
from nnmpi.data.dataset import Dataset as Dataset
from nnmpi.data.dataset import DatasetEntry, DatasetRequest
from nnmpi.data.dataset import Language as Language
from nnmpi.data.dataset import Split as Split
from nnmpi.data.dataset import from_arrays as from_arrays
from nnmpi.data.dataset import hold_out as hold_out
from nnmpi.data.dataset import samples_like as samples_like
from nnmpi.data.inputs import Inputs as Inputs
from nnmpi.data.loader import Batch as Batch
from nnmpi.data.loader import Loader as Loader
from nnmpi.data.loader import StepBatch as StepBatch
from nnmpi.data.loader import WantedFields as WantedFields
from nnmpi.data.standardise import Standardiser as Standardiser
from nnmpi.options.quoting import quoted

__path__.append(finder.ENTRY)

CONTEXT = 128
"""The default number of tokens in a window of text."""


def load(
    spec: str,
    *,
    data_dir: str | None = None,
    download: bool = False,
    seed: int = 0,
    ignore_index: int | None = None,
    context: int = CONTEXT,
    tokenizer: Any = None,
) -> Dataset:
    """Loads the data set that `--data` names: NAME, NAME:ARGUMENT or FILE.npz.

    data_dir: the directory of data files, existing and downloaded; default: the user's cache
    spec: the value of `--data`
    seed: chooses the held-out test samples, and the values of synthetic data
    ignore_index: the label that a loss ignores
    context: the number of tokens in a window of text
    tokenizer: a tokenizer, or its folder or file; default: one token per character, or per byte
    """
    name, colon, argument = spec.partition(":")
    if _entry(name) is None and spec.endswith(".npz"):
        name, colon, argument = "npz", ":", spec
    entry = _entry(name)
    if entry is None:
        raise ValueError(f"data set {quoted(spec)} {_why_unknown(spec)}")
    if tokenizer is not None and not entry.has_tokenizer:
        raise ValueError(
            f"--tokenizer is for --data text:FILE, and the data set is {quoted(spec)}; leave it out"
        )
    fits = bool(argument) == (entry.form != name) or entry.may_stand_alone
    if not fits or (colon and not argument):
        raise ValueError(f"data set {quoted(spec)} is not of the form {entry.form}")
    directory = Path(os.path.expanduser(data_dir)) if data_dir else default_directory()
    return entry.load(
        DatasetRequest(argument, directory, download, seed, ignore_index, context, tokenizer)
    )


def default_directory() -> Path:
    """Returns `nnmpi` in the user's cache, $XDG_CACHE_HOME or ~/.cache."""
    cache = os.environ.get("XDG_CACHE_HOME", "")
    return Path(cache if os.path.isabs(cache) else os.path.expanduser("~/.cache")) / "nnmpi"


TABLES = {".csv", ".tsv", ".parquet", ".feather", ".xlsx"}
"""Endings of files with columns, which other libraries read."""


def _why_unknown(spec: str) -> str:
    """Says why a value of --data names no data set, and what to give instead."""
    if TABLES & {suffix.lower() for suffix in Path(spec).suffixes}:
        return (
            "is a table, and has to be an .npz file: read it with NumPy, pandas or polars, and "
            'write numpy.savez("data.npz", x=features, y=labels), numbers of shape (rows, columns) '
            "and a class from 0 for each row; then --data data.npz"
        )
    entries = *DATASETS.values(), *MORE_DATASETS.rows()
    forms = ", ".join(entry.form for entry in entries)
    return f"is not known; choose one of {forms}"


def _entry(name: str) -> DatasetEntry | None:
    """Returns a data set's entry of nnmpi or an add-on; None if there is none."""
    return DATASETS.get(name) or MORE_DATASETS.row(name)


def blank(
    spec: str,
    data_dir: str | None = None,
    seed: int = 0,
    context: int = CONTEXT,
    tokenizer: str | None = None,
) -> Dataset:
    """Returns a data set with the shapes and sizes of the one that `spec` names, to plan a run: all
    its samples share one row of zeros. If only samples tell the size, they are loaded."""
    name, _, argument = spec.partition(":")
    entry = None if tokenizer else _entry(name)  # load refuses one for data that are no text
    if entry is None or entry.size is None or bool(argument) != (entry.form != name):
        return load(spec, data_dir=data_dir, seed=seed, context=context, tokenizer=tokenizer)
    shape, classes, train, test, dtype = entry.size(argument)
    row, label = np.zeros(shape, dtype), np.zeros((), "int64")
    training, testing = (
        Split(np.broadcast_to(row, (n, *shape)), np.broadcast_to(label, (n,)))
        for n in (train, test)
    )
    return Dataset(spec, training, testing, classes, "")


def blank_windows(vocabulary: int, context: int, samples: int) -> Dataset:
    """Returns a data set of `samples` windows of `context` tokens, int64 (samples, context), all
    zeros, to plan a run of a language model. `vocabulary` is the number of different tokens."""
    rows = np.broadcast_to(np.zeros((), "int64"), (samples, context))
    name = f"windows of {context:,} of {vocabulary:,} tokens"
    return Dataset(name, Split(rows, rows), Split(rows, rows), vocabulary, "")


MORE_DATASETS: addons.Table[DatasetEntry] = addons.Table("datasets")
"""By the name before the colon: the entry of an add-on's data sets."""

DATASETS = {
    "iris": DatasetEntry(embedded.iris, "iris"),
    "digits": DatasetEntry(embedded.digits, "digits"),
    "synthetic": DatasetEntry(
        synthetic.synthetic,
        "synthetic:1x28x28:10:12800 (shape, classes, samples)",
        synthetic.size_of,
    ),
    "npz": DatasetEntry(npz.npz, "FILE.npz"),
}
"""By name; add-ons have more, in the table `datasets`."""

if TYPE_CHECKING:
    from nnmpi.addons.images import cifar as cifar
    from nnmpi.addons.images import download as download
    from nnmpi.addons.images import mnist as mnist
else:  # type checkers know from the names above which there are

    def __dir__() -> list[str]:
        return sorted({*globals(), *addons.names_of(__name__)})

    def __getattr__(name: str) -> Any:
        if where := addons.names_of(__name__).get(name):
            return addons.loaded(where)
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
