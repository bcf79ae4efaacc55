"""PyTorch's DataLoader, and `default_collate`, which joins samples into a batch."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from nnmpi.addons.torchlike.utils.data.dataset import IterableDataset, Subset, TensorDataset
from nnmpi.addons.torchlike.utils.data.sampler import BatchSampler, RandomSampler, SequentialSampler
from nnmpi.autograd import Tensor
from nnmpi.autograd.functional import stack, tensor
from nnmpi.nn.seeding import Generator
from nnmpi.options.notes import note


def default_collate(samples: Sequence[Any]) -> Any:
    """Joins samples into a batch: tensors, arrays and numbers get a new first axis; tuples, lists
    and dicts keep their structure."""
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
    """Iterates over the batches of a data set, in a new order each time if `shuffle`.

    A rank makes a batch only when it is asked for, since worker processes do not go well with MPI:
    arguments about workers and about copies to devices have no effect.

    sampler        yields the index of each sample, in place of `shuffle`; e.g. a DistributedSampler
    batch_sampler  yields the list of indices of each batch, in place of `batch_size` too
    collate_fn     makes a batch of a list of samples
    generator      draws the random orders of `shuffle`
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
        _check_order(dataset, batch_size, shuffle, sampler, batch_sampler, drop_last)
        if num_workers or pin_memory:
            note(
                "DataLoader: num_workers and pin_memory change nothing: a rank makes a batch when "
                "it is asked for"
            )
        self._is_iterable = isinstance(dataset, IterableDataset)
        self.dataset, self.collate_fn, self.drop_last = dataset, collate_fn, drop_last
        self.num_workers, self.pin_memory, self.generator = num_workers, pin_memory, generator
        self.batch_size = batch_size if batch_sampler is None else None
        if batch_sampler is None:
            if self._is_iterable:
                sampler = dataset
            elif sampler is None and shuffle:
                sampler = RandomSampler(dataset, generator=generator)
            elif sampler is None:
                sampler = SequentialSampler(dataset)
            batch_sampler = BatchSampler(sampler, batch_size, drop_last)
        self.sampler, self.batch_sampler = sampler, batch_sampler

    def __len__(self) -> int:
        """The number of batches."""
        if self._is_iterable and not hasattr(self.dataset, "__len__"):
            raise TypeError(f"{type(self.dataset).__name__}, an IterableDataset, has no length")
        return len(self.batch_sampler)  # type: ignore[arg-type]

    def __iter__(self) -> Iterator[Any]:
        return map(self._batch, iter(self.batch_sampler))

    def _batch(self, indices: Sequence[Any]) -> Any:
        if self._is_iterable:  # then they are the samples themselves
            return (self.collate_fn or default_collate)(list(indices))
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


def _check_order(
    dataset: Any,
    batch_size: int,
    shuffle: bool | None,
    sampler: Iterable[Any] | None,
    batch_sampler: Iterable[Sequence[Any]] | None,
    drop_last: bool,
) -> None:
    """Raises ValueError if these arguments of a DataLoader give samples two orders or two sizes of
    batches, or none."""
    if batch_size is None or batch_size < 1:
        raise ValueError(
            f"DataLoader: batch_size={batch_size} must be at least 1; for single samples "
            "iterate the data set itself"
        )
    if sampler is not None and shuffle:
        raise ValueError("DataLoader: a sampler has the order: leave out shuffle=True")
    is_ordered = bool(shuffle) or sampler is not None
    if batch_sampler is not None and (batch_size != 1 or is_ordered or drop_last):
        raise ValueError(
            "DataLoader: a batch_sampler makes the batches: leave out batch_size, shuffle, "
            "sampler and drop_last"
        )
    if isinstance(dataset, IterableDataset) and (is_ordered or batch_sampler is not None):
        raise ValueError(
            "DataLoader: an IterableDataset has its order: leave out shuffle, sampler and "
            "batch_sampler"
        )
