"""The loader: the order of rows, their values, and a prefetch thread that always ends."""

import threading
from collections.abc import Iterator

import numpy as np
import pytest

from nnmpi.arrays import keyed
from nnmpi.data import Loader, Split, Standardiser
from nnmpi.data.loader import BatchSplit, prefetch


def table(n: int = 53) -> Split:
    x = np.random.default_rng(1).normal(3, 5, (n, 6)).astype("float32")
    return Split(x, np.arange(n) % 4)


def pictures(n: int = 53) -> Split:
    x = np.random.default_rng(2).integers(0, 256, (n, 3, 5, 4), "uint8")
    return Split(x, np.arange(n) % 10)


def loader_of(split: Split, batch_size: int = 8, **options: object) -> Loader:
    standardiser = Standardiser.of(split)
    return Loader(split, batch_size, standardiser=standardiser, **options)  # type: ignore[arg-type]


def alive() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name.startswith("nnmpi-prefetch")]


@pytest.fixture
def large_data(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Loaders treat all data as large; afterwards no thread is left."""
    monkeypatch.setattr("nnmpi.data.loader.SMALL", 0)
    yield
    assert not alive()


@pytest.mark.parametrize("prefetch", [0, 2])
@pytest.mark.parametrize("split", [table(), pictures()], ids=["table", "pictures"])
@pytest.mark.usefixtures("large_data")
def test_an_epoch_has_every_row_once(split: Split, prefetch: int) -> None:
    loader = loader_of(split, prefetch=prefetch)
    assert not alive()
    batches = list(loader.epoch(4))
    assert [len(b.y) for b in batches] == [8] * 6 + [5]
    assert len(loader) == 7
    order = np.concatenate([b.samples for b in batches])
    np.testing.assert_array_equal(order, keyed.permutation(keyed.key(0, "order", 4), 53))
    assert order.dtype == "int64"
    for b in batches:
        np.testing.assert_array_equal(b.x, loader.standardiser.apply(split.x[b.samples]))
        np.testing.assert_array_equal(b.y, split.y[b.samples])


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize("split", [table(), pictures()], ids=["table", "pictures"])
def test_small_and_large_data_give_identical_values(
    split: Split, dtype: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    small = [b.x for b in loader_of(split, dtype=dtype).epoch(0)]
    assert not alive()
    monkeypatch.setattr("nnmpi.data.loader.SMALL", 0)
    large = [b.x for b in loader_of(split, dtype=dtype).epoch(0)]
    for a, b in zip(small, large, strict=True):
        assert a.dtype == b.dtype == dtype
        assert a.flags.c_contiguous
        assert b.flags.c_contiguous
        np.testing.assert_array_equal(a, b)


def test_the_order_depends_on_seed_and_epoch_only() -> None:
    split = table()

    def order(seed: int, epoch: int, batch_size: int = 8) -> tuple[int, ...]:
        parts = loader_of(split, batch_size, seed=seed).batches(epoch)
        return tuple(np.concatenate(list(parts)).tolist())

    assert order(0, 0) == order(0, 0) == order(0, 0, 53) == order(0, 0, 500)
    assert len({order(0, 0), order(0, 1), order(1, 0)}) == 3
    rows = np.concatenate(list(loader_of(split, shuffle=False).batches(3)))
    np.testing.assert_array_equal(rows, np.arange(53))


@pytest.mark.parametrize(
    "split",
    [
        table(),
        pictures(),
        pictures(30_000),  # more than one block
        Split((table(90_000).x[:, :4] + np.float32(1e4)), np.zeros(90_000, int)),
    ],
    ids=["table", "pictures", "many pictures", "many rows far from zero"],
)
def test_statistics_against_float64(split: Split) -> None:
    axes = (0, 2, 3) if split.x.ndim == 4 else (0,)
    x = split.x.astype("float64")
    mean, std = x.mean(axes, keepdims=True)[0], x.std(axes, keepdims=True)[0]
    standardiser = Standardiser.of(split)
    assert standardiser.mean.dtype == standardiser.std.dtype == "float32"
    np.testing.assert_allclose(standardiser.mean, mean, rtol=1e-7)
    np.testing.assert_allclose(standardiser.std, std, rtol=1e-6)
    np.testing.assert_allclose(standardiser.apply(split.x), (x - mean) / std, atol=2e-4)
    exact = (x - standardiser.mean) / standardiser.std.astype("float64")
    np.testing.assert_allclose(standardiser.apply(split.x, "float64"), exact, rtol=1e-14)


def test_bad_splits_are_refused() -> None:
    split = table()
    empty = Split(split.x[:0], split.y[:0])
    standardiser = Standardiser.of(split)
    for part, words in (
        (empty, "0 samples"),
        (Split(split.x, split.y[:7]), "53 samples and 7 labels"),
        (pictures(), "for 6 channels or features, but the samples have 3 channels"),
    ):
        with pytest.raises(ValueError, match=words) as caught:
            Loader(part, 8, standardiser=standardiser)
        assert "\n" not in str(caught.value)


@pytest.mark.usefixtures("large_data")
def test_the_loads_of_ranks_are_the_batches_with_their_divisors() -> None:
    """From any batch on; the divisor is that of the whole batch, whatever a rank has of it."""
    split, first = table(), 2

    def weights(y: np.ndarray) -> float:
        return float((y + 1).sum())

    loader = loader_of(split, divisor=weights)
    batches = [*loader.batches(5)]
    ranks = [[*loader.loads(5, BatchSplit(3, 2, r), first)] for r in range(2)]
    for rows, *loads in zip(batches[first:], *ranks, strict=True):
        for load in loads:
            np.testing.assert_array_equal(load.rows, rows)
            assert load.divisor == weights(split.y[rows])
        micro = [
            batch for pair in zip(*(load.micro for load in loads), strict=True) for batch in pair
        ]
        np.testing.assert_array_equal(np.concatenate([batch.samples for batch in micro]), rows)
        np.testing.assert_array_equal(np.concatenate([batch.y for batch in micro]), split.y[rows])
        wanted = loader.standardiser.apply(split.x[rows])
        np.testing.assert_array_equal(np.concatenate([batch.x for batch in micro]), wanted)


def test_a_thread_computes_some_items_in_advance_and_raises_its_error_after_them() -> None:
    begun, waits = [0], threading.Event()

    def items() -> Iterator[int]:
        for i in range(7):
            begun[0] += 1
            yield i
        raise OSError("the disk is gone")

    made = prefetch(items(), 3)
    assert next(made) == 0
    while begun[0] < 4:  # the one in use, and three more
        waits.wait(0.001)
    waits.wait(0.05)  # for a thread that would go on
    assert begun[0] == 4
    found = list[int]()
    with pytest.raises(OSError, match="the disk is gone"):
        found.extend(made)
    assert found == [1, 2, 3, 4, 5, 6]
    assert not alive()
