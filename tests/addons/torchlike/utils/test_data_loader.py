"""nnmpi.utils.data: batches, orders and splits, beside PyTorch where it is installed."""

from contextvars import copy_context
from itertools import chain
from typing import Any, NamedTuple

import numpy as np
import pytest
from helpers.datafiles import refused
from helpers.ops.oracle import needs_torch, pytorch

import nnmpi
from nnmpi.utils.data import ConcatDataset, DataLoader, Dataset, Subset, TensorDataset, random_split

X, Y = np.arange(20.0, dtype="float32").reshape(10, 2), np.arange(10)


class Records(Dataset):
    """Samples of all kinds."""

    def __len__(self) -> int:
        return 5

    def __getitem__(self, i: int) -> dict[str, Any]:
        return {"x": X[i], "pair": (i, nnmpi.tensor(Y[i])), "name": f"row {i}"}


def numbers(loader: DataLoader) -> list[list[int]]:
    return [batch[1].tolist() for batch in loader]


def seeded(seed: int, function: Any) -> Any:
    def call() -> Any:
        nnmpi.manual_seed(seed)
        return function()

    return copy_context().run(call)


def test_batches_are_tensors_in_the_structure_of_samples() -> None:
    with pytest.warns(UserWarning, match="num_workers and pin_memory change nothing"):
        loader = DataLoader(Records(), batch_size=2, num_workers=2, pin_memory=True)
    assert len(loader) == 3
    *_, last = loader
    assert last["x"].numpy().tolist() == [[8, 9]]
    assert [t.numpy().tolist() for t in last["pair"]] == [[4], [4]]
    assert last["name"] == ["row 4"]
    assert len(DataLoader(Records(), 2, drop_last=True)) == 2
    assert [*DataLoader(Records(), 3, collate_fn=len)] == [3, 2]
    x, y = next(iter(DataLoader(TensorDataset(X, Y), 4)))
    assert (x.dtype, x.shape, y.dtype, y.tolist()) == ("float32", (4, 2), "int64", [0, 1, 2, 3])


def test_orders_depend_on_the_seed_and_differ_each_time() -> None:
    data = TensorDataset(X, Y)

    def orders() -> list[list[list[int]]]:
        first, second = DataLoader(data, 4, shuffle=True), DataLoader(data, 4, True)
        return [numbers(first), numbers(second), numbers(first)]

    drawn = seeded(0, orders)
    assert drawn == seeded(0, orders) != seeded(1, orders)
    assert len({str(order) for order in drawn}) == 3
    for order in drawn:
        assert sorted(chain(*order)) == Y.tolist()
        assert [*map(len, order)] == [4, 4, 2]


def test_parts_of_parts() -> None:
    train, rest = seeded(0, lambda: random_split(TensorDataset(X, Y), [0.75, 0.25]))
    assert (len(train), len(rest)) == (8, 2)
    both = numbers(DataLoader(train, 8)) + numbers(DataLoader(rest, 8))
    assert sorted(chain(*both)) == Y.tolist()
    part = Subset(train, [1, 0])
    assert numbers(DataLoader(part, 2)) == [[both[0][1], both[0][0]]]
    assert int(part[0][1]) == both[0][1]
    assert [len(p) for p in random_split(Records(), [3, 2])] == [3, 2]
    assert [len(p) for p in random_split(Y[:1], [0.5, 0.5])] == [1, 0]


def test_data_sets_one_after_the_other() -> None:
    both = TensorDataset(Y) + TensorDataset(Y[:2])
    joined = ConcatDataset([both, TensorDataset(Y[5:6])])
    assert (len(joined), joined.cumulative_sizes) == (13, [12, 13])
    assert [int(joined[i][0]) for i in (0, 9, 10, 12, -1, -13)] == [0, 9, 0, 5, 5, 0]
    assert [b[0].tolist() for b in DataLoader(joined, 8)][1] == [8, 9, 0, 1, 5]
    for i in (13, -14):
        with pytest.raises(IndexError, match=f"sample {i} of 13"):
            joined[i]
    with refused("give at least one"):
        ConcatDataset([])


class Hundreds(TensorDataset):
    """Rows that a user's method changes, one at a time."""

    def __getitem__(self, i: int) -> tuple[Any, ...]:
        assert type(i) is int
        return super().__getitem__(i)[0] * 100, i


class Negative(Subset):
    """Samples of a data set that a user's method changes."""

    def __getitem__(self, i: int) -> Any:
        return -super().__getitem__(i)[1]


def test_data_sets_of_users_make_their_own_samples() -> None:
    x, i = next(iter(DataLoader(Hundreds(X), 3)))
    assert (x.tolist(), i.tolist()) == ((X[:3] * 100).tolist(), [0, 1, 2])
    part = Negative(TensorDataset(X, Y), [7, 3])
    assert [batch.tolist() for batch in DataLoader(part, 2)] == [[-7, -3]]
    assert [batch.tolist() for batch in DataLoader(Subset(part, [1]), 2)] == [[-3]]


class Point(NamedTuple):
    x: float
    label: int


def test_batches_of_named_tuples_have_their_names() -> None:
    (batch,) = DataLoader([Point(0.5, 1), Point(1.5, 0)], 2)
    assert (batch.x.tolist(), batch.label.tolist()) == ([0.5, 1.5], [1, 0])


@needs_torch
def test_sizes_and_structures_are_pytorchs() -> None:
    theirs = pytorch().utils.data
    for lengths in ([0.5, 0.25, 0.25], [1], [7, 3], [0.333, 0.333, 0.334]):
        expected = [len(part) for part in theirs.random_split(Y, lengths)]
        assert [len(part) for part in random_split(Y, lengths)] == expected
    samples = [[(1, (2, True)), (3, (4, False))], [{"a": b"x"}, {"a": b"y"}]]
    for data in samples:
        (ours,), (wanted,) = DataLoader(data, 2), theirs.DataLoader(data, 2)
        assert str(plain(ours)) == str(plain(wanted))


def plain(batch: Any) -> Any:
    if isinstance(batch, dict):
        return {key: plain(value) for key, value in batch.items()}
    if isinstance(batch, list):
        return [*map(plain, batch)]
    return batch if isinstance(batch, bytes) else batch.tolist()


def test_what_cannot_be_is_refused() -> None:
    with refused("(10, 2), (9,)", "the same number of rows"):
        TensorDataset(X, Y[1:])
    with refused("[5, 6]", "of 10 samples", "add up to 1"):
        random_split(Y, [5, 6])
    for size in (0, None):
        with refused(f"batch_size={size}", "the data set itself"):
            DataLoader(Y, size)


class Counts(nnmpi.utils.data.IterableDataset):
    """Yields (i, i * i) for i from 0 to 6."""

    def __iter__(self) -> Any:
        return ((i, float(i * i)) for i in range(7))


@pytest.mark.parametrize(("drop_last", "lengths"), [(False, [3, 3, 1]), (True, [3, 3])])
def test_samples_that_a_data_set_yields_are_joined(drop_last: bool, lengths: list[int]) -> None:
    loader = nnmpi.utils.data.DataLoader(Counts(), batch_size=3, drop_last=drop_last)
    for _ in range(2):
        batches = list(loader)
        assert [len(i) for i, _ in batches] == lengths
        assert batches[1][0].tolist() == [3, 4, 5]
        assert batches[1][1].tolist() == [9, 16, 25]
    with pytest.raises(TypeError, match="an IterableDataset, has no length"):
        len(loader)
    with pytest.raises(ValueError, match="has its order"):
        nnmpi.utils.data.DataLoader(Counts(), shuffle=True)
