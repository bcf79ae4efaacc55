"""Data sets: labelled samples in a training and a test split, and data sets from arrays."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from nnmpi.arrays import keyed
from nnmpi.data.inputs import Inputs, described, each, is_index, like, parts
from nnmpi.options.quoting import quoted

BLOCK = 1 << 16  # elements that are copied or compared at a time

TOKENIZER = "tokenizer"
"""The metadata key under which a file of a model describes the tokenizer of its text."""


class Split(NamedTuple):
    """Samples x, and their labels or targets y; the first axis counts the samples.

    x: an array, or a tuple or dict of arrays, one for each input of the model. Features are uint8
        or float32: (N, features), sequences (N, C, L), images (N, C, H, W), ...; an int64 array
        has indices, such as tokens
    y: int64 class numbers from 0, one for each sample (N,) or each position (N, ...); or floats
        (N, ...), the targets of a regression
    """

    x: Inputs
    y: np.ndarray


class Language(NamedTuple):
    """The tokens of a text data set.

    tokenizer: its description, from which
        `nnmpi.addons.language.data.tokenizer.tokenizer_of` makes the tokenizer
    unit: the unit in which texts are measured: character or byte
    tokens_a_unit: tokens per unit in the held-out text
    """

    tokenizer: str
    unit: str
    tokens_a_unit: float


class Dataset(NamedTuple):
    """A data set: its training and test splits, and the number of classes.

    classes: 0 if y are the targets of a regression
    note: a sentence for the user about how the data were found or split; may be empty
    language: the tokens, if the data are text
    """

    name: str
    train: Split
    test: Split
    classes: int
    note: str
    language: Language | None = None


class DatasetRequest(NamedTuple):
    """The arguments of a function that loads a data set.

    argument: the text after the name and the colon (a file, a shape); may be empty
    directory: the directory of data files, existing and downloaded
    ignore_index: the label that a loss ignores
    context: the number of tokens in a window of text
    tokenizer: a tokenizer for a text, or its path; None for the default
    """

    argument: str
    directory: Path
    download: bool
    seed: int
    ignore_index: int | None
    context: int
    tokenizer: Any


class DatasetSize(NamedTuple):
    """Shape and dtype of a sample, classes, and numbers of training and test samples."""

    shape: tuple[int, ...]
    classes: int
    train: int
    test: int
    dtype: str = "uint8"


class DatasetEntry(NamedTuple):
    """An entry of DATASETS: how to load a data set, and how to write it on the command line.

    load: loads the data set
    form: the value of `--data` for it, such as "mnist" or "synthetic:SHAPE:CLASSES:SAMPLES"
    size: returns the size for an argument; None if samples must be read to know it
    may_stand_alone: True if the argument after the colon is optional
    has_tokenizer: True if it takes a tokenizer
    """

    load: Callable[[DatasetRequest], Dataset]
    form: str
    size: Callable[[str], DatasetSize] | None = None
    may_stand_alone: bool = False
    has_tokenizer: bool = False


def hold_out(
    x: Inputs, y: np.ndarray, seed: int, name: str, reuse: bool = False
) -> tuple[Split, Split]:
    """Returns (training split, test split) of samples x and labels or targets y; a pseudo-random
    fifth of each class is for testing, by `seed` and the `name` of the data set.

    With `reuse`, the memory of the arrays is reused for the training split.

    Rows are shuffled, then sorted by class, if they have one. Of these n rows, t are taken at even
    distances: row k is taken if (k + 1) t / n passes an integer. So exactly t rows are taken, and
    each class contributes its share, to within one row. Both splits keep the order of the rows.
    """
    n = len(y)
    if n < 2:
        raise ValueError(
            f"{name}: cannot hold out test data from {n} sample; give at least 2, or test data"
        )
    t = min(max(round(n * 0.2), 1), n - 1)
    order = keyed.permutation(keyed.key(seed, "hold-out", name), n)
    labels = y.ndim == 1 and y.dtype.kind in "iu"
    by_class = order[np.argsort(y[order], kind="stable")] if labels else order
    k = np.arange(n)
    taken = np.zeros(n, bool)
    taken[by_class] = (k + 1) * t // n > k * t // n
    rest = (lambda array: _compressed(array, ~taken)) if reuse else (lambda array: array[~taken])
    test = each(lambda array: array[taken], x), y[taken]
    return Split(each(rest, x), rest(y)), Split(*test)


def _compressed(array: np.ndarray, kept: np.ndarray) -> np.ndarray:
    """Moves the rows of an array where `kept` is True to its beginning, block by block, and returns
    them as a view. This overwrites the array, but needs no memory for a copy."""
    rows = np.flatnonzero(kept)
    step = max(BLOCK * len(array) // max(array.size, 1), 1)
    for start in range(0, len(rows), step):
        part = rows[start : start + step]
        array[start : start + len(part)] = array[part]
    return array[: len(rows)]


def kept_as(dtype: np.dtype[Any], is_label: bool) -> np.dtype[Any]:
    """Returns the dtype to which loaded samples (with `is_label`, labels) are converted.

    Integers become int64, but uint8 samples (pixels) stay uint8. Float samples and booleans become
    float32; float labels become float32 or float64. Other dtypes are returned unchanged.
    """
    if is_label and dtype.kind == "f":
        return np.dtype("float64" if dtype.itemsize > 4 else "float32")
    if dtype.kind in "iu":
        return dtype if dtype == np.uint8 and not is_label else np.dtype("int64")
    return np.dtype("float32") if dtype.kind in "bf" and not is_label else dtype


def from_arrays(
    x: Any,
    y: Any,
    x_test: Any = None,
    y_test: Any = None,
    seed: int = 0,
    name: str = "arrays",
    ignore_index: int | None = None,
    reuse: bool = False,
) -> Dataset:
    """A data set made of arrays in memory; without test arrays, a fifth of the rows is held out.

    x: (N, ...), or a tuple or a dict of such arrays as the model's arguments: integers are indices
        and become int64, but uint8 is kept; floats and booleans become float32
    y: integers from 0, or `ignore_index`, (N,) for samples or (N, ...) for their positions; or the
        targets of a regression, floats (N, ...)
    reuse: True if the memory of the arrays may be reused, which saves memory
    """
    everything = _split(x, y, name, "", ignore_index)
    if (x_test is None) != (y_test is None):
        present, missing = ("x_test", "y_test") if y_test is None else ("y_test", "x_test")
        raise ValueError(f"{name}: {present} is given but {missing} is not; give both or neither")
    if x_test is None:
        train, test = hold_out(*everything, seed, name, reuse)
    else:
        train, test = everything, _split(x_test, y_test, name, "_test", ignore_index)
        _check_same_kind(train, test, name)
    labels = np.concatenate((train.y, test.y))
    is_regression = labels.dtype.kind == "f"
    labels = labels[:0] if is_regression else labels[labels != ignore_index]
    classes = 0 if is_regression else int(labels.max(initial=0)) + 1
    note = "; ".join(_notes(train, test, labels, x_test is None))
    return Dataset(name, train, test, classes, note)


def _notes(train: Split, test: Split, labels: np.ndarray, is_held_out: bool) -> Iterator[str]:
    """Yields sentences for the user about how the data were split and understood: that rows are
    held out (`is_held_out`), or that integers are taken as indices and not standardised."""
    if is_held_out:
        yield f"{len(train.y):,} rows for training, {len(test.y):,} held out for testing"
    if labels.size and labels.min() > 0:
        lowest, classes = labels.min(), labels.max() + 1
        yield (f"no label is 0 (lowest: {lowest}), but {classes} classes are counted, from 0 on")
    indices = [f"x{name}" for name, array in parts(train.x) if is_index(array)]
    if indices:
        names = ", ".join(indices)
        yield f"integers are indices, not standardised ({names}); give features as floats"


def samples_like(x: Any, train: Split) -> Inputs:
    """Returns x as inputs like the training samples; raises ValueError otherwise."""
    samples = _inputs(x, "x")
    for name, array in parts(samples):
        if len(array) != len(parts(samples)[0][1]):
            rows = ", ".join(f"{len(other):,}" for _, other in parts(samples))
            raise ValueError(f"x{name}: the inputs have {rows} rows; give the same number of each")
    _check_same_kind(train, Split(samples, train.y), "predict", "samples")
    return samples


def _split(x: Any, y: Any, name: str, suffix: str, ignore_index: int | None) -> Split:
    """Returns the split of samples x and labels or targets y; raises ValueError, which names them,
    if they are unusable, or if their numbers differ."""
    samples = _inputs(x, f"{name}: x{suffix}")
    labels = _targets(_array(y, f"{name}: y{suffix}"), f"{name}: y{suffix}", ignore_index)
    for part, array in parts(samples):
        if len(array) != len(labels):
            raise ValueError(
                f"{name}: x{suffix}{part} has {len(array):,} rows and y{suffix} {len(labels):,} "
                "labels; each row needs one label"
            )
    if not len(labels):
        raise ValueError(f"{name}: x{suffix} and y{suffix} are empty; give at least one sample")
    return Split(samples, labels)


def _array(value: Any, label: str) -> np.ndarray:
    try:
        return np.asarray(value)
    except (TypeError, ValueError) as error:
        type_name = f"{type(value).__module__}.{type(value).__name__}"
        raise ValueError(
            f"{label} is a {type_name} that NumPy cannot read; give a rectangular NumPy array"
        ) from error


def _inputs(x: Any, label: str) -> Inputs:
    """Returns x as an array, tuple or dict of arrays that a model can take."""
    if isinstance(x, tuple | dict) and not x:
        raise ValueError(f"{label} is {described(x)} of 0 arrays; give at least one")
    for name in x if isinstance(x, dict) else ():
        if not (isinstance(name, str) and name.isidentifier()):
            raise ValueError(
                f"{label} has an input named {quoted(name)}; the model is called as model(**x), "
                "so give the name of an argument"
            )
    return like(x, [_samples(_array(part, label + name), label + name) for name, part in parts(x)])


def _samples(x: np.ndarray, label: str) -> np.ndarray:
    """Returns x as uint8, int64 or finite float32 samples; raises ValueError otherwise."""
    if x.dtype.kind not in "biuf":
        raise ValueError(f"{label} holds {x.dtype}; samples must be real numbers")
    if x.ndim == 0:
        raise ValueError(f"{label} is one number; it must be (N, features) or another (N, ...)")
    if x.size == 0 and len(x):
        raise ValueError(
            f"{label} has shape {x.shape}: samples without features; give at least one"
        )
    with np.errstate(over="ignore"):
        stored = x.astype(kept_as(x.dtype, is_label=False), copy=False)
    if stored.dtype.kind == "f":
        _check_finite(stored, label)
    return stored


def _check_finite(rows: np.ndarray, label: str) -> None:
    step = max(BLOCK * len(rows) // max(rows.size, 1), 1)
    bad = [
        start + np.flatnonzero(~np.isfinite(part).reshape(len(part), -1).all(axis=1))
        for start in range(0, len(rows), step)
        if not np.isfinite(part := rows[start : start + step]).all()
    ]
    if bad:
        raise ValueError(
            f"{label}: {sum(map(len, bad)):,} of {len(rows):,} rows hold NaN or values outside "
            f"{rows.dtype}, the first is row {int(bad[0][0])}; remove or repair them"
        )


def _targets(y: np.ndarray, label: str, ignore_index: int | None) -> np.ndarray:
    """Returns y as non-negative int64 (or `ignore_index`), the classes of samples, or as finite
    floats; raises ValueError otherwise. `label` names y in messages."""
    if y.ndim == 0:
        raise ValueError(f"{label} is one number; give one or more for each row, (N, ...)")
    if y.dtype.kind == "f":
        numbers = y.astype(kept_as(y.dtype, is_label=True), copy=False)
        _check_finite(numbers, label)
        return numbers
    if y.dtype.kind not in "iu" and y.size:
        raise ValueError(f"{label} holds {y.dtype}; labels must be integers: y.astype('int64')")
    labels = y.astype("int64", copy=False)
    counted = labels[labels != ignore_index]
    if counted.size and counted.min() < 0:
        raise ValueError(
            f"{label} has a label {counted.min()}; classes are counted from 0, and targets of a "
            "regression are floating-point numbers: y.astype('float32')"
        )
    return labels


def _check_same_kind(train: Split, test: Split, name: str, label: str = "x_test") -> None:
    """Raises ValueError unless training and test samples, and their targets, have the same shape
    and dtype. `name`, of the data set, and `label`, of the test samples, are for the message."""
    tests = dict(parts(test.x))
    if tests.keys() != dict(parts(train.x)).keys():
        raise ValueError(
            f"{name}: x is {described(train.x)} and {label} {described(test.x)}; give both in the "
            "same form"
        )
    pairs = [(f"x{part}", f"{label}{part}", x, tests[part]) for part, x in parts(train.x)]
    for given, other, a, b in (*pairs, ("y", "y_test", train.y, test.y)):
        if a.dtype.kind != b.dtype.kind or a.shape[1:] != b.shape[1:]:
            raise ValueError(
                f"{name}: a sample of {given} is {a.dtype} of shape {a.shape[1:]} and one of "
                f"{other} {b.dtype} of shape {b.shape[1:]}; give both in the same type, shape and "
                "scale"
            )
