"""Loads the data set, and makes the standardiser of its samples."""

from collections.abc import Callable
from typing import Any

from nnmpi.addons import Table
from nnmpi.comm import Comm
from nnmpi.data import Dataset, Standardiser, from_arrays, load
from nnmpi.data.inputs import arrays, is_index
from nnmpi.io.files import loading
from nnmpi.nn.losses import ClassLoss
from nnmpi.options.config import Config
from nnmpi.options.quoting import quoted, shown
from nnmpi.parallel.checks import CHECKS
from nnmpi.parallel.step.objective import Criterion

SAYS_HOW = {"mean", "std"}
"""Metadata of a file that say how samples were standardised for its model."""


def dataset_of(config: Config, given: Dataset | tuple[Any, ...] | None, loss: Criterion) -> Dataset:
    """Returns the given data set, as Dataset or arrays, or the config's."""
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
        **data_options(config),
    )


DATA_OPTIONS: Table[Callable[[Config], dict[str, Any]]] = Table("data_options")
"""By an option: a function that returns arguments of `nnmpi.data.load`."""


def data_options(config: Config) -> dict[str, Any]:
    """Returns keyword arguments of `nnmpi.data.load` from add-ons, such as a tokenizer."""
    options_of = DATA_OPTIONS.chosen(config)
    return options_of(config) if options_of else {}


def standardiser_of(config: Config, dataset: Dataset, comm: Comm) -> Standardiser:
    """Returns the standardiser of samples (mean and deviation) that the config asks for. `auto`
    takes the one in the file of --load, if there is one, otherwise that of the training samples."""
    if config.load and comm.rank == comm.node()[0]:  # the file is read whole once per node
        loading.check_content(config.load)
    if config.standardise != "auto":
        return _of_numbers(config.standardise, dataset)
    if not config.load:
        return Standardiser.of(dataset.train)
    metadata = loading.read_metadata(config.load)
    if not metadata.keys() & SAYS_HOW:
        return Standardiser.of(dataset.train)
    try:
        return Standardiser.from_metadata(metadata).shaped_for(dataset.train.x)
    except ValueError as error:
        raise ValueError(
            f"--load {config.load} and data {dataset.name}: {error}, or set --standardise"
        ) from None


def guessed(path: str, config: Config, dataset: Dataset) -> str:
    """Returns a warning if the samples may be standardised otherwise than when the model in the
    file `path` was trained; "" if the file or the options say how."""
    if config.standardise != "auto" or loading.read_metadata(path).keys() & SAYS_HOW:
        return ""
    if all(map(is_index, arrays(dataset.train.x))):
        return ""
    return (
        f"{shown(path)} does not say how its samples were standardised; here they get the "
        f"mean and deviation of {dataset.name}; if its training had others, give "
        "--standardise none (raw values) or --standardise=MEAN,STD"
    )


def check_language(config: Config, dataset: Dataset) -> None:
    """Raises ValueError if the data are text and do not fit the options for text."""
    if dataset.language is not None:
        for checks in CHECKS.given(config):
            checks.text(config, dataset)


def _of_numbers(spec: str, dataset: Dataset) -> Standardiser:
    try:
        mean, std = (0.0, 1.0) if spec == "none" else map(float, spec.split(","))
        return Standardiser.of_numbers(dataset.train.x, mean, std)
    except ValueError:
        raise ValueError(
            f"standardise {quoted(spec)} is not auto, none, or MEAN,STD: two numbers such as "
            "0.13,0.31, of which the second is above 0"
        ) from None
