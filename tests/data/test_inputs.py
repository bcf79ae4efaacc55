"""Inputs: indices, samples of any number of axes, and several arrays a sample."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.datafiles import refused

from nnmpi import data
from nnmpi.data import Loader, Split, Standardiser, from_arrays
from nnmpi.data.inputs import arrays, each, parts, zeros

N = 20
RNG = np.random.default_rng(5)
Y = np.arange(N) % 3
WORDS = RNG.integers(0, 300, (N, 4))
TABLE = RNG.normal(9, 3, (N, 5))
IMAGES = RNG.integers(0, 256, (N, 2, 3, 3), "uint8")
SEVERAL: dict[str, Any] = {
    "tuple": (WORDS, TABLE, IMAGES),
    "dict": {"words": WORDS, "table": TABLE, "images": IMAGES},
}


def same(a: Any, b: Any) -> None:
    """The same structure, types and bits."""
    assert [name for name, _ in parts(a)] == [name for name, _ in parts(b)]
    for x, y in zip(arrays(a), arrays(b), strict=True):
        np.testing.assert_array_equal(x, y, strict=True)


@pytest.mark.parametrize("shape", [(N,), (N, 4), (N, 1, 2, 1, 2, 2)], ids=str)
def test_integers_are_indices_with_any_axes(shape: tuple[int, ...]) -> None:
    x = RNG.integers(0, 70_000, shape).astype("int32")
    found = from_arrays(x, Y)
    assert "integers are indices, not standardised (x)" in found.note
    assert found.train.x.dtype == "int64"
    standardiser = Standardiser.of(found.train)
    assert standardiser == (None, None)
    loader = Loader(found.train, 6, standardiser=standardiser, dtype="float16")
    for batch in loader.epoch(0):
        np.testing.assert_array_equal(batch.x, found.train.x[batch.samples], strict=True)
    same(zeros(found.train.x, 2, "float64"), np.zeros((2, *shape[1:]), "int64"))


@pytest.mark.parametrize("shape", [(N,), (N, 3), (N, 3, 4), (N, 3, 2, 1, 2)], ids=str)
def test_floats_are_standardised_by_their_second_axis(shape: tuple[int, ...]) -> None:
    x = RNG.normal(5, 2, shape)
    split = Split(x.astype("float32"), Y)
    standardiser = Standardiser.of(split)
    axes = (0, *range(2, x.ndim))
    assert standardiser.mean.shape == shape[1:2] + (1,) * (x.ndim - 2)
    mean, std = split.x.mean(axes, keepdims=True, dtype="f8"), split.x.std(axes, keepdims=True)
    np.testing.assert_allclose(standardiser.apply(split.x), (split.x - mean) / std, atol=1e-5)
    flat = Standardiser(standardiser.mean.ravel(), standardiser.std.ravel()).shaped_for(split.x)
    np.testing.assert_array_equal(flat.apply(split.x), standardiser.apply(split.x))
    again = Standardiser.from_metadata(standardiser.metadata()).shaped_for(split.x)
    for a, b in zip(again, standardiser, strict=True):
        np.testing.assert_array_equal(a, b, strict=True)


@pytest.mark.parametrize("x", SEVERAL.values(), ids=SEVERAL)
def test_metadata_keep_the_standardiser_of_each_input(x: Any) -> None:
    split = from_arrays(x, Y).train
    standardiser = Standardiser.of(split)
    again = Standardiser.from_metadata(standardiser.metadata()).shaped_for(split.x)
    same(again.apply(split.x), standardiser.apply(split.x))
    only = Standardiser.of(Split(WORDS, Y))
    assert only.metadata() == {"mean": "null", "std": "null"}
    assert Standardiser.from_metadata(only.metadata()) == only
    with refused("one array", "expected"):
        again.shaped_for(TABLE)
    with refused("indices", "astype('float32')"):
        Standardiser.of(Split(TABLE, Y)).shaped_for(WORDS)
    with refused("trained on indices", "astype('int64')"):
        only.shaped_for(TABLE)


@pytest.mark.parametrize("x", SEVERAL.values(), ids=SEVERAL)
def test_npz_files_have_several_inputs(x: Any, tmp_path: Path) -> None:
    path = tmp_path / "several.npz"
    given = {f"x{name}": array for name, array in parts(x)}
    tests = {f"x_test{name}": array[:3] for name, array in parts(x)}
    few = each(lambda array: array[:3], x)
    for more, x_test, y_test in (({}, None, None), ({**tests, "y_test": Y[:3]}, few, Y[:3])):
        np.savez(path, y=Y, z=Y, **given, **more)
        found = data.load(str(path), seed=2)
        wanted = from_arrays(x, Y, x_test, y_test, 2, path.name)
        assert found.note == wanted.note
        same(found.train.x, wanted.train.x)
        same(found.test.x, wanted.test.x)


def test_npz_files_name_inputs_by_numbers_or_by_words(tmp_path: Path) -> None:
    path = tmp_path / "several.npz"
    np.savez(path, y=Y, **{f"x.{i}": np.full((N, 1), i) for i in reversed(range(12))})
    assert [x[0, 0] for x in arrays(data.load(str(path)).train.x)] == [*range(12)]
    for wrong in (("x.0", "x.2"), ("x", "x.a"), ("x.0", "x.a")):
        np.savez(path, y=Y, **dict.fromkeys(wrong, TABLE))
        with refused(*wrong, "x.0, x.1 and so on", "x.words"):
            data.load(str(path))
    np.savez(path, y=Y, **{"x_test.a": TABLE})
    with refused("no array x"):
        data.load(str(path))


def test_labels_of_positions_have_any_axes() -> None:
    for shape in ((N, 4), (N, 2, 3), (N, 1, 2, 3)):
        y = RNG.integers(-1, 5, shape)
        found = from_arrays(TABLE, y, ignore_index=-1)
        assert found.classes == y.max() + 1
        np.testing.assert_array_equal(np.concatenate((found.train.y, found.test.y)).shape, shape)
    assert from_arrays(TABLE, np.eye(N, dtype=int)).classes == 2  # the scores tell what is meant
