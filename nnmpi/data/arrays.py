"""Data sets from arrays: checks them, converts them to the types of a Split, divides them."""

from typing import Any

import numpy as np

from nnmpi.data.dataset import Dataset, Split, hold_out


def from_arrays(
    x: Any,
    y: Any,
    x_test: Any = None,
    y_test: Any = None,
    seed: int = 0,
    name: str = "arrays",
    ignore_index: int | None = None,
) -> Dataset:
    """A data set from arrays in memory; without test arrays a fifth of the rows is held out.

    x: (N, features), (N, C, L) or (N, C, H, W); uint8 is kept, other numbers become float32
    y: (N,) integers from 0, or `ignore_index`, of pixels (N, H, W); or the targets of a regression,
        (N, ...) of floats
    """
    everything = _split(x, y, name, "", ignore_index)
    if (x_test is None) != (y_test is None):
        given, missing = ("x_test", "y_test") if y_test is None else ("y_test", "x_test")
        raise ValueError(f"{name}: {given} is given but {missing} is not; give both or neither")
    if x_test is None:
        train, test = hold_out(*everything, seed, name)
        note = f"{len(train.y):,} rows for training, {len(test.y):,} held out for testing"
    else:
        train, test, note = everything, _split(x_test, y_test, name, "_test", ignore_index), ""
        _check_same_kind(train, test, name)
    labels = np.concatenate((train.y, test.y))
    if labels.dtype.kind == "f":
        return Dataset(name, train, test, 0, note)
    labels = labels[labels != ignore_index]
    classes = int(labels.max(initial=0)) + 1
    if labels.size and labels.min() > 0:
        gap = f"no label is 0 (they run from {labels.min()}), so {classes} classes are counted"
        note = f"{note}; {gap}" if note else gap
    return Dataset(name, train, test, classes, note)


def _split(x: Any, y: Any, name: str, suffix: str, ignore_index: int | None) -> Split:
    """A split of these arrays; raises ValueError if they are unusable."""
    samples = _samples(_array(x, f"{name}: x{suffix}"), f"{name}: x{suffix}")
    targets = _array(y, f"{name}: y{suffix}")
    if targets.dtype.kind == "f":
        labels = _numbers(targets, f"{name}: y{suffix}")
    else:
        labels = _labels(targets, f"{name}: y{suffix}", ignore_index)
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
    """x as uint8 or finite float32, with two to four dimensions."""
    if x.dtype.kind not in "biuf":
        raise ValueError(f"{what} holds {x.dtype}; samples must be real numbers")
    if x.ndim not in (2, 3, 4):
        raise ValueError(
            f"{what} has shape {x.shape}; it must be (N, features), (N, C, L) or (N, C, H, W)"
        )
    if x.size == 0 and len(x):
        raise ValueError(f"{what} has shape {x.shape}: samples without features; give at least one")
    if x.dtype == np.uint8:
        return x
    with np.errstate(over="ignore"):
        floats = x.astype("float32", copy=False)
    _check_finite(floats, what)
    return floats


def _check_finite(rows: np.ndarray, what: str) -> None:
    finite = np.isfinite(rows)
    if not finite.all():
        bad = ~finite.reshape(len(rows), -1).all(axis=1)
        raise ValueError(
            f"{what}: {np.count_nonzero(bad):,} of {len(rows):,} rows hold NaN or values outside "
            f"{rows.dtype}, the first is row {int(bad.argmax())}; remove or repair them"
        )


def _labels(y: np.ndarray, what: str, ignore_index: int | None) -> np.ndarray:
    """y as int64, of samples or of their pixels, and not negative."""
    if y.ndim not in (1, 3):
        hint = "; for one-hot labels give y.argmax(1)" if y.ndim == 2 else ""
        raise ValueError(
            f"{what} has shape {y.shape}; labels must be (N,), or (N, H, W) of pixels{hint}, and "
            "targets of a regression floating-point numbers: y.astype('float32')"
        )
    if y.dtype.kind not in "iu" and y.size:
        raise ValueError(f"{what} holds {y.dtype}; labels must be integers: y.astype('int64')")
    labels = y.astype("int64", copy=False)
    counted = labels[labels != ignore_index]
    if counted.size and counted.min() < 0:
        raise ValueError(
            f"{what} has a label {counted.min()}; classes are counted from 0, and targets of a "
            "regression are floating-point numbers: y.astype('float32')"
        )
    return labels


def _numbers(y: np.ndarray, what: str) -> np.ndarray:
    """Targets of a regression as finite float32 or float64, with an axis of samples."""
    if y.ndim == 0:
        raise ValueError(f"{what} is one number; give one or more for each row, (N, ...)")
    wide = y.astype(np.float64 if y.dtype.itemsize > 4 else np.float32, copy=False)
    _check_finite(wide, what)
    return wide


def _check_same_kind(train: Split, test: Split, name: str) -> None:
    """Training and test samples have the same shape and type, and so have their targets."""
    if train.y.dtype.kind != test.y.dtype.kind or train.y.shape[1:] != test.y.shape[1:]:
        raise ValueError(
            f"{name}: y is {train.y.dtype} of shape {train.y.shape} and y_test is {test.y.dtype} "
            f"of shape {test.y.shape}; give both in the same form"
        )
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
