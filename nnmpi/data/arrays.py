"""Data sets from arrays: checks them, converts them to the types of a Split, divides them."""

from typing import Any

import numpy as np

from nnmpi.data.dataset import Dataset, Split, hold_out


def from_arrays(
    x: Any, y: Any, x_test: Any = None, y_test: Any = None, seed: int = 0, name: str = "arrays"
) -> Dataset:
    """A data set from arrays in memory; without test arrays a fifth of the rows is held out.

    x: (N, features) or (N, C, H, W); uint8 is kept, other numbers become float32
    y: (N,) integers from 0
    """
    everything = _split(x, y, name, "")
    if (x_test is None) != (y_test is None):
        given, missing = ("x_test", "y_test") if y_test is None else ("y_test", "x_test")
        raise ValueError(f"{name}: {given} is given but {missing} is not; give both or neither")
    if x_test is None:
        train, test = hold_out(*everything, seed, name)
        note = f"{len(train.y):,} rows for training, {len(test.y):,} held out for testing"
    else:
        train, test, note = everything, _split(x_test, y_test, name, "_test"), ""
        _check_same_kind(train, test, name)
    labels = np.concatenate((train.y, test.y))
    classes = int(labels.max()) + 1
    if labels.min() > 0:
        gap = f"no label is 0 (they run from {labels.min()}), so {classes} classes are counted"
        note = f"{note}; {gap}" if note else gap
    return Dataset(name, train, test, classes, note)


def _split(x: Any, y: Any, name: str, suffix: str) -> Split:
    """A split of these arrays; raises ValueError if they are unusable."""
    samples = _samples(_array(x, f"{name}: x{suffix}"), f"{name}: x{suffix}")
    labels = _labels(_array(y, f"{name}: y{suffix}"), f"{name}: y{suffix}")
    if len(samples) != len(labels):
        raise ValueError(
            f"{name}: x{suffix} has {len(samples):,} rows and y{suffix} {len(labels):,} labels; "
            "each row needs one label"
        )
    if not len(samples):
        raise ValueError(f"{name}: x{suffix} and y{suffix} are empty; give at least one sample")
    return Split(samples, labels)


def _array(value: Any, what: str) -> np.ndarray:
    try:
        return np.asarray(value)
    except (TypeError, ValueError) as error:
        kind = f"{type(value).__module__}.{type(value).__name__}"
        raise ValueError(
            f"{what} is a {kind} that NumPy cannot read; give a rectangular NumPy array"
        ) from error


def _samples(x: np.ndarray, what: str) -> np.ndarray:
    """x as uint8 or finite float32, with two or four dimensions."""
    if x.dtype.kind not in "biuf":
        raise ValueError(f"{what} holds {x.dtype}; samples must be real numbers")
    if x.ndim not in (2, 4):
        hint = f"; for grey images write x[:, None] to get {_add_channel(x)}" if x.ndim == 3 else ""
        raise ValueError(
            f"{what} has shape {x.shape}; it must be (N, features) or (N, C, H, W){hint}"
        )
    if x.size == 0 and len(x):
        raise ValueError(f"{what} has shape {x.shape}: samples without features; give at least one")
    if x.dtype == np.uint8:
        return x
    with np.errstate(over="ignore"):
        floats = x.astype("float32", copy=False)
    finite = np.isfinite(floats)
    if not finite.all():
        bad = ~finite.reshape(len(x), -1).all(axis=1)
        raise ValueError(
            f"{what}: {np.count_nonzero(bad):,} of {len(x):,} rows hold NaN or values outside "
            f"float32, the first is row {int(bad.argmax())}; remove or repair them"
        )
    return floats


def _labels(y: np.ndarray, what: str) -> np.ndarray:
    """y as int64, one-dimensional and not negative."""
    if y.ndim != 1:
        hint = "; for one-hot labels give y.argmax(1)" if y.ndim == 2 else ""
        raise ValueError(f"{what} has shape {y.shape}; labels must be (N,){hint}")
    if y.dtype.kind not in "iu" and y.size:
        raise ValueError(f"{what} holds {y.dtype}; labels must be integers: y.astype('int64')")
    labels = y.astype("int64", copy=False)
    if labels.size and labels.min() < 0:
        raise ValueError(f"{what} has a label {labels.min()}; classes are counted from 0")
    return labels


def _add_channel(x: np.ndarray) -> str:
    return f"({x.shape[0]}, 1, {x.shape[1]}, {x.shape[2]})"


def _check_same_kind(train: Split, test: Split, name: str) -> None:
    """Training and test samples have the same shape and type."""
    if train.x.shape[1:] != test.x.shape[1:]:
        raise ValueError(
            f"{name}: a sample of x has shape {train.x.shape[1:]} and one of x_test "
            f"{test.x.shape[1:]}; they must be the same"
        )
    if train.x.dtype != test.x.dtype:
        raise ValueError(
            f"{name}: x is {train.x.dtype} and x_test is {test.x.dtype}; "
            "give both in the same type and scale"
        )
