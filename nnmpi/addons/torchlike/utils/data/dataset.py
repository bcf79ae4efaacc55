"""PyTorch's data sets of numbered samples, and parts of them."""

import math
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import numpy as np

from nnmpi.addons import finder
from nnmpi.autograd import Tensor
from nnmpi.autograd.functional import as_tensors
from nnmpi.nn.random_numbers import randperm
from nnmpi.nn.seeding import Generator, drawing_from

T = TypeVar("T")


class Dataset(Generic[T]):
    """A base class for data sets of numbered samples: subclass it, and define `__getitem__` and
    `__len__`. The sum a + b of two has the samples of a, then those of b."""

    def __add__(self, other: Any) -> "ConcatDataset":
        return ConcatDataset([self, other])


class IterableDataset(Dataset[T]):
    """The base of data sets that yield samples in order: define `__iter__`."""

    def __iter__(self) -> Iterator[T]:
        raise NotImplementedError(f"{type(self).__name__} does not define __iter__")


class TensorDataset(Dataset[tuple[Tensor, ...]]):
    """A data set whose sample i is the i-th row of each tensor or array: (a[i], b[i], ...)."""

    def __init__(self, *tensors: Any) -> None:
        self.tensors = tuple(as_tensors(*tensors))
        if len({len(t) for t in self.tensors}) != 1:
            shapes = [t.shape for t in self.tensors]
            raise ValueError(f"TensorDataset: {shapes}: give tensors with the same number of rows")

    def __getitem__(self, index: Any) -> tuple[Tensor, ...]:
        return tuple(t[index] for t in self.tensors)

    def __len__(self) -> int:
        return len(self.tensors[0])


class Subset(Dataset[Any]):
    """A data set that consists of those samples of `dataset` that have the given indices."""

    def __init__(self, dataset: Any, indices: Sequence[int] | np.ndarray) -> None:
        self.dataset, self.indices = dataset, np.asarray(indices, "int64")

    def __getitem__(self, index: Any) -> Any:
        return self.dataset[self.indices[index]]

    def __len__(self) -> int:
        return len(self.indices)


class ConcatDataset(Dataset[Any]):
    """A data set that has the samples of several data sets, one after the other."""

    def __init__(self, datasets: Iterable[Any]) -> None:
        self.datasets = [*datasets]
        self.cumulative_sizes = [*accumulate(map(len, self.datasets))]
        if not self.datasets:
            raise ValueError("ConcatDataset: give at least one data set")

    def __getitem__(self, index: int) -> Any:
        place = index + len(self) if index < 0 else index
        if not 0 <= place < len(self):
            raise IndexError(f"ConcatDataset: sample {index} of {len(self)}")
        k = bisect_right(self.cumulative_sizes, place)
        return self.datasets[k][place - self.cumulative_sizes[k - 1] if k else place]

    def __len__(self) -> int:
        return self.cumulative_sizes[-1]


def random_split(
    dataset: Any, lengths: Sequence[float], generator: Generator | None = None
) -> list[Subset]:
    """Splits a data set at random into Subsets; `lengths` are numbers of samples, or shares if they
    add up to 1."""
    n, are_shares = len(dataset), math.isclose(sum(lengths), 1)
    sizes = [int(n * length if are_shares else length) for length in lengths]
    for i in range(n - sum(sizes) if are_shares else 0):
        sizes[i % len(sizes)] += 1
    if sum(sizes) != n or min(sizes) < 0:
        raise ValueError(
            f"random_split: parts {lengths} of {n} samples: give lengths that add up to {n}, or "
            "shares that add up to 1"
        )
    with drawing_from(generator):
        order = randperm(n).numpy()
    return [Subset(dataset, part) for part in np.split(order, np.cumsum(sizes)[:-1])]


if not TYPE_CHECKING:  # type checkers still report names that do not exist
    __getattr__ = finder.refuser("nnmpi.utils.data.dataset", "data")
