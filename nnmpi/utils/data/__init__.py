"""PyTorch's `utils.data`: data sets of single samples, and a loader that makes batches of them.

Random orders come from `nnmpi.randperm`, so they depend on the seed of `nnmpi.manual_seed` and are
the same on all ranks. A Trainer, which divides batches among ranks, takes arrays instead.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import numpy as np

from nnmpi import addons
from nnmpi.autograd import Tensor, replacements
from nnmpi.autograd.functional import as_tensors, stack, tensor
from nnmpi.nn.random_numbers import randperm
from nnmpi.nn.seeding import Generator, drawing_from
from nnmpi.options.notes import note
from nnmpi.utils.samplers import BatchSampler as BatchSampler
from nnmpi.utils.samplers import RandomSampler as RandomSampler
from nnmpi.utils.samplers import Sampler as Sampler
from nnmpi.utils.samplers import SequentialSampler as SequentialSampler
from nnmpi.utils.samplers import SubsetRandomSampler as SubsetRandomSampler
from nnmpi.utils.samplers import WeightedRandomSampler as WeightedRandomSampler

T = TypeVar("T")


class Dataset(Generic[T]):
    """A base class for data sets of numbered samples: subclass it, and define `__getitem__` and
    `__len__`."""


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
    """A data set of the samples of another one that have the given indices."""

    def __init__(self, dataset: Any, indices: Sequence[int] | np.ndarray) -> None:
        self.dataset, self.indices = dataset, np.asarray(indices, "int64")

    def __getitem__(self, index: Any) -> Any:
        return self.dataset[self.indices[index]]

    def __len__(self) -> int:
        return len(self.indices)


def random_split(
    dataset: Any, lengths: Sequence[float], generator: Generator | None = None
) -> list[Subset]:
    """Splits a data set at random into parts of the given lengths, or of the given shares if they
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


def default_collate(samples: Sequence[Any]) -> Any:
    """Joins samples into a batch: tensors, arrays and numbers get a new first axis, and tuples,
    lists and dicts keep their structure."""
    first = samples[0]
    if isinstance(first, Tensor):
        return stack(samples)
    if isinstance(first, Mapping):
        return {key: default_collate([sample[key] for sample in samples]) for key in first}
    if isinstance(first, tuple | list):
        columns = [default_collate(column) for column in zip(*samples, strict=True)]
        return type(first)(*columns) if hasattr(first, "_fields") else columns
    return list(samples) if isinstance(first, str | bytes) else tensor(np.stack(samples))


class DataLoader:
    """Iterates over the batches of a data set, in a new order each time if `shuffle`, or in that of
    the indices which a `sampler` yields, such as a DistributedSampler.

    A rank makes a batch when it is asked for, since worker processes do not go well with MPI: what
    is about workers and about copies to devices changes nothing.

    sampler        yields the index of each sample, in place of `shuffle`
    batch_sampler  yields the list of indices of each batch, in place of `batch_size` too
    collate_fn     makes a batch of a list of samples
    generator      draws the orders of `shuffle`
    """

    def __init__(
        self,
        dataset: Any,
        batch_size: int = 1,
        shuffle: bool | None = None,
        sampler: Iterable[Any] | None = None,
        batch_sampler: Iterable[Sequence[Any]] | None = None,
        num_workers: int = 0,
        collate_fn: Callable[[list[Any]], Any] | None = None,
        pin_memory: bool = False,
        drop_last: bool = False,
        timeout: float = 0,
        worker_init_fn: Callable[[int], None] | None = None,
        multiprocessing_context: Any = None,
        generator: Generator | None = None,
        *,
        prefetch_factor: int | None = None,
        persistent_workers: bool = False,
        pin_memory_device: str = "",
    ) -> None:
        if batch_size is None or batch_size < 1:
            raise ValueError(
                f"DataLoader: batch_size={batch_size} must be at least 1; for single samples "
                "iterate the data set itself"
            )
        if sampler is not None and shuffle:
            raise ValueError("DataLoader: a sampler has the order: leave out shuffle=True")
        if batch_sampler is not None and (
            batch_size != 1 or shuffle or sampler is not None or drop_last
        ):
            raise ValueError(
                "DataLoader: a batch_sampler makes the batches: leave out batch_size, shuffle, "
                "sampler and drop_last"
            )
        if num_workers or pin_memory:
            note(
                "DataLoader: num_workers and pin_memory change nothing: a rank makes a batch when "
                "it is asked for"
            )
        self.dataset, self.collate_fn, self.drop_last = dataset, collate_fn, drop_last
        self.num_workers, self.pin_memory, self.generator = num_workers, pin_memory, generator
        self.batch_size = batch_size if batch_sampler is None else None
        if batch_sampler is None:
            if sampler is None and shuffle:
                sampler = RandomSampler(dataset, generator=generator)
            elif sampler is None:
                sampler = SequentialSampler(dataset)
            batch_sampler = BatchSampler(sampler, batch_size, drop_last)
        self.sampler, self.batch_sampler = sampler, batch_sampler

    def __len__(self) -> int:
        """The number of batches."""
        return len(self.batch_sampler)  # type: ignore[arg-type]

    def __iter__(self) -> Iterator[Any]:
        return map(self._batch, iter(self.batch_sampler))

    def _batch(self, indices: Sequence[Any]) -> Any:
        if self.collate_fn:
            return self.collate_fn([self.dataset[i] for i in indices])
        dataset, rows = self.dataset, np.asarray(indices)
        while type(dataset) is Subset:  # not of a subclass, which may override __getitem__
            dataset, rows = dataset.dataset, dataset.indices[rows]
        if type(dataset) is TensorDataset:
            return [*dataset[rows]]
        if dataset is not self.dataset:
            indices = rows.tolist()
        return default_collate([dataset[i] for i in indices])


if not TYPE_CHECKING:  # type checkers still report names that do not exist

    def __getattr__(name: str) -> Any:
        if (where := addons.names_of("nnmpi.utils.data").get(name)) is not None:
            return addons.loaded(where)
        raise replacements.missing(replacements.no_name("nnmpi.utils.data", name, "data"))
