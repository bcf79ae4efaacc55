"""Data sets: every entry of DATASETS gives a valid Dataset; bad input raises a one-line error."""

import io
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from helpers.datafiles import checked, refused

from nnmpi import data
from nnmpi.data import DATASETS, from_arrays, hold_out


def write_npz(folder: Path) -> str:
    path = folder / "table.npz"
    np.savez(path, x=np.arange(60.0).reshape(20, 3), y=np.arange(20) % 4)
    return str(path)


PREPARED: dict[str, Callable[[Path], str]] = {
    "synthetic": lambda _: "synthetic:2x3x4:5:50",
    "npz": write_npz,
}


@pytest.mark.parametrize("name", DATASETS)
def test_every_entry_gives_a_valid_dataset(name: str, tmp_path: Path) -> None:
    spec = PREPARED.get(name, lambda _: name)(tmp_path)
    dataset = checked(spec, tmp_path)
    assert dataset.name.startswith(name) or name == "npz"
    for x, y in (dataset.train, dataset.test):
        assert y.shape == (len(x),)


@pytest.mark.parametrize("spec", ["mnits", "", "iris:3", "npz"])
def test_a_wrong_name_or_form_is_refused(spec: str) -> None:
    with refused(repr(spec), DATASETS.get(spec.partition(":")[0], DATASETS["npz"]).form):
        data.load(spec)


def test_iris() -> None:
    dataset = data.load("iris")
    assert dataset.train.x.shape == (120, 4)
    assert dataset.classes == 3
    assert np.bincount(dataset.test.y).tolist() == [10, 10, 10]
    whole = np.concatenate((dataset.train.x, dataset.test.x))
    np.testing.assert_allclose(whole.mean(0), [5.843333, 3.057333, 3.758, 1.199333], rtol=1e-6)


def test_digits() -> None:
    dataset = data.load("digits")
    assert dataset.train.x.shape[1:] == (1, 8, 8)
    assert dataset.train.x.dtype == "uint8"
    assert len(dataset.test.y) == 360
    assert dataset.train.x.max() == 16
    counts = np.bincount(np.concatenate((dataset.train.y, dataset.test.y)))
    assert counts.tolist() == [178, 182, 177, 183, 181, 182, 181, 179, 174, 180]


@pytest.mark.parametrize(("n", "classes"), [(2, 1), (7, 3), (100, 10), (103, 4), (12, 12)])
def test_hold_out_takes_a_share_of_each_class(n: int, classes: int) -> None:
    x, y = np.arange(n)[:, None].astype("float32"), np.arange(n) % classes
    train, test = hold_out(x, y, 5, "some")
    assert len(test.y) == max(round(n / 5), 1)
    assert sorted((*train.x[:, 0], *test.x[:, 0])) == list(range(n))
    shares = np.bincount(test.y, minlength=classes) - np.bincount(y) * len(test.y) / n
    assert np.abs(shares).max() < 1
    for part in (train, test):
        np.testing.assert_array_equal(part.x[:, 0] % classes, part.y)
        assert (np.diff(part.x[:, 0]) > 0).all()


def test_targets_of_a_regression_are_kept_and_divided_at_random() -> None:
    x = np.arange(20.0).reshape(10, 2)
    for y, dtype in ((x[:, 0], "float64"), (x.astype("float16"), "float32")):
        both = data.from_arrays(x, y)
        assert (both.classes, both.train.y.dtype, both.test.y.dtype) == (0, dtype, dtype)
        assert (len(both.train.y), len(both.test.y)) == (8, 2)
        for split in (both.train, both.test):
            np.testing.assert_array_equal(split.y.reshape(len(split.y), -1)[:, 0], split.x[:, 0])
    assert (both.train.y != data.from_arrays(x, y, seed=1).train.y).any()


def test_labels_in_a_file_that_are_ignored_are_no_classes(tmp_path: Path) -> None:
    file = tmp_path / "words.npz"
    np.savez(file, x=np.arange(6), y=np.array([0, 1, -100, 1, 0, -100]))
    assert data.load(str(file), ignore_index=-100).classes == 2
    with pytest.raises(ValueError, match="label -100"):
        data.load(str(file))


def test_npz_with_and_without_test_data(tmp_path: Path) -> None:
    held = data.load(write_npz(tmp_path))
    assert held.name == "table.npz"
    assert (len(held.train.y), len(held.test.y)) == (16, 4)
    assert held.train.x.dtype == "float32"
    assert "4 held out" in held.note
    path = tmp_path / "both.npz"
    x = np.zeros((5, 1, 2, 2), "uint8")
    np.savez_compressed(path, x=x, y=np.arange(5, dtype="uint8"), x_test=x[:2], y_test=[4, 6])
    both = data.load(f"npz:{path}")
    assert both.train.x.dtype == "uint8"
    assert both.classes == 7
    assert both.note == ""
    assert both.test.y.tolist() == [4, 6]


def test_bad_npz_files_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "bad.npz"
    with refused(str(path), "is not a file"):
        data.load(str(path))
    np.savez(path, x=np.zeros((2, 2)), labels=[0, 1])
    with refused(str(path), "no array y", "numpy.savez"):
        data.load(str(path))
    np.savez(path, x=np.array([{}, None]), y=[0, 1])
    with refused(str(path), "x holds Python objects", "plain numbers only"):
        data.load(str(path))
    whole = io.BytesIO()
    np.savez_compressed(whole, x=np.random.default_rng(0).random((9, 9)), y=np.arange(9))
    good = bytearray(whole.getvalue())
    damaged = good.copy()
    damaged[120:130] = b"0123456789"
    for content in (b"", b"text", good[:200]):
        path.write_bytes(bytes(content))
        with refused(str(path), "cannot be read as an .npz file", "not a zip archive"):
            data.load(str(path))
    path.write_bytes(bytes(damaged))
    with refused(str(path), "is damaged"):
        data.load(str(path))


X, Y = np.zeros((4, 3)), np.arange(4)


@pytest.mark.parametrize(
    ("arrays", "words"),
    [
        ((X, Y[:3]), ("4 rows", "3 labels")),
        ((X[:0], Y[:0]), ("empty",)),
        ((X[:1], Y[:1]), ("1 sample",)),
        ((np.float32(1), Y), ("x is one number", "(N, features)")),
        ((X.astype(complex), Y), ("complex128",)),
        (([["a"]] * 4, Y), ("real numbers",)),
        (([[1.0], [2.0, 3.0]], Y), ("list", "rectangular")),
        ((np.where(np.eye(4, 3) > 0, np.nan, 0), Y), ("3 of 4 rows", "row 0")),
        ((X + np.diag([0, 0, 1e300, 0])[:, :3], Y), ("1 of 4 rows", "row 2")),
        ((X, Y > 1), ("bool", "astype('int64')")),
        ((X, np.array([np.nan, 1, 2, 3])), ("1 of 4 rows", "float64", "row 0")),
        ((X, Y / 2, X, Y), ("y is float64", "y_test int64")),
        ((X, Y - 2), ("label -2", "from 0", "regression", "astype('float32')")),
        ((X, Y, X), ("x_test is given but y_test is not",)),
        ((X, Y, X[:, :2], Y), ("(3,)", "(2,)")),
        ((X, Y, X.astype("uint8"), Y), ("float32", "uint8")),
        ((X, Y, X, Y[:2]), ("x_test has 4 rows", "y_test 2 labels")),
        (((X, X[:2]), Y), ("x.1 has 2 rows", "4 labels")),
        (({"a": X, "b": X - np.inf}, Y), ("x.b", "4 of 4 rows")),
        (({}, Y), ("0 arrays",)),
        (({"a-b": X}, Y), ("'a-b'", "model(**x)", "argument")),
        (((X, X), Y, X, Y), ("x is a tuple of 2", "x_test one array")),
        (({"a": X}, Y, {"b": X}, Y), ("a dict of a", "a dict of b")),
        (((X, X), Y, (X, X[:, :1]), Y), ("x.1", "(3,)", "x_test.1", "(1,)")),
    ],
)
def test_bad_arrays_are_refused(arrays: tuple[object, ...], words: tuple[str, ...]) -> None:
    with refused("mine: ", *words):
        from_arrays(*arrays, name="mine")  # type: ignore[arg-type]


def test_arrays_are_converted_to_the_types_of_a_split() -> None:
    types = {"uint8": "uint8", "bool": "float32", "float64": "float32", "int8": "int64"}
    for kind, stored in {**types, "uint16": "int64", ">i2": "int64", "int64": "int64"}.items():
        assert from_arrays(X.astype(kind), Y.astype("u2")).train.x.dtype == stored
    assert from_arrays(X.tolist(), Y.tolist()).train.y.dtype == "int64"
    shifted = from_arrays(X, Y + 1)
    assert shifted.classes == 5
    assert "no label is 0" in shifted.note


def test_synthetic_data_can_be_learned_and_do_not_depend_on_the_number_of_samples() -> None:
    dataset = data.load("synthetic:1x6x7:4:400")
    assert dataset.train.x.shape == (400, 1, 6, 7)
    assert len(dataset.test.y) == 80
    x, y = dataset.train.x.reshape(400, -1), dataset.train.y
    centres = np.stack([x[y == c].mean(0) for c in range(4)])
    distance = ((dataset.test.x.reshape(80, 1, -1) - centres) ** 2).sum(-1)
    assert (distance.argmin(1) == dataset.test.y).mean() > 0.95
    more = data.load("synthetic:1x6x7:4:500")
    np.testing.assert_array_equal(more.train.x[:400], dataset.train.x)
    assert not np.array_equal(data.load("synthetic:1x6x7:4:400", seed=1).train.x, dataset.train.x)
    assert data.load("synthetic:5:3:2").train.x.shape == (2, 5)
    assert data.load(f"synthetic:005:3:{'0' * 17}2").train.x.shape == (2, 5)


@pytest.mark.parametrize("form", ["1x28:10:5", "a:b:c", "4:0:9", f"4:2:{'0' * 18}9"])
def test_a_bad_synthetic_form_is_refused(form: str) -> None:
    with refused(f"synthetic:{form}", "CLASSES", "above 0"):
        data.load(f"synthetic:{form}")


def test_the_first_row_that_is_not_finite_is_named() -> None:
    """It is in the second block of rows that are looked at."""
    x = np.zeros((70_000, 2), "float32")
    x[[69_000, 69_999], 1] = np.nan, np.inf
    with refused("2 of 70,000 rows hold NaN", "the first is row 69000;"):
        data.from_arrays(x, np.zeros(70_000, int))
