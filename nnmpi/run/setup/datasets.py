"""The data set of a run, and by what its samples are standardised."""

from typing import Any

from nnmpi.comm import Comm
from nnmpi.data import Dataset, Standardiser, blank, from_arrays, load
from nnmpi.nn.losses import ClassLoss
from nnmpi.options.config import Config
from nnmpi.options.quoting import quoted
from nnmpi.parallel.step.objective import Criterion
from nnmpi.run.files import loading
from nnmpi.run.setup.vocabulary import tokenizer_of_text


def dataset_of(config: Config, given: Dataset | tuple[Any, ...] | None, loss: Criterion) -> Dataset:
    """The data set that was given, whole or as arrays, or else the one that the config names."""
    ignored = loss.ignore_index if isinstance(loss, ClassLoss) else None
    if isinstance(given, Dataset):
        return given
    if given is not None:
        is_tuple = isinstance(given, tuple | list)
        if not is_tuple or len(given) not in (2, 4):
            what = f"{len(given)} arrays" if is_tuple else f"type {type(given).__name__}"
            raise ValueError(
                f"data has {what}; give (x, y) or (x, y, x_test, y_test), or name a data set in "
                "Config"
            )
        x, y, *test = given
        x_test, y_test = test or (None, None)
        return from_arrays(x, y, x_test, y_test, seed=config.seed, ignore_index=ignored)
    is_synthetic = config.data.startswith("synthetic:") and config.tokenizer is None
    if config.dry_run and is_synthetic:  # it needs no files, nor numbers
        return blank(config.data)
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
    """The standardiser that the config asks for; if `auto`, that of the file of --load if it has
    one, else of the training samples."""
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
            f"standardise {quoted(spec)} is none of auto, none, and MEAN,STD: two numbers such as "
            "0.13,0.31, of which the second is above 0"
        ) from None
