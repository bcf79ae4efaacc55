"""PyTorch's samplers: the order in which a DataLoader takes samples, and how it makes batches."""

from collections.abc import Iterable, Iterator, Sequence, Sized
from itertools import islice
from typing import Any, Generic, TypeVar

from nnmpi.autograd import on_host
from nnmpi.nn.random_numbers import multinomial, randint, randperm
from nnmpi.nn.seeding import Generator, drawing_from

T_co = TypeVar("T_co", covariant=True)


class Sampler(Generic[T_co]):
    """The base of samplers: define `__iter__`, of indices or lists of them, and `__len__`."""

    def __iter__(self) -> Iterator[T_co]:
        raise NotImplementedError(f"{type(self).__name__} does not define __iter__")


class SequentialSampler(Sampler[int]):
    """Yields the indices of `data_source` in order, from 0 on."""

    def __init__(self, data_source: Sized) -> None:
        self.data_source = data_source

    def __iter__(self) -> Iterator[int]:
        return iter(range(len(self.data_source)))

    def __len__(self) -> int:
        return len(self.data_source)


class RandomSampler(Sampler[int]):
    """Yields indices in a new random order each time, or drawn independently with `replacement`; as
    many as `data_source` has, or `num_samples`."""

    def __init__(
        self,
        data_source: Sized,
        replacement: bool = False,
        num_samples: int | None = None,
        generator: Generator | None = None,
    ) -> None:
        if num_samples is not None and num_samples < 1:
            raise ValueError(f"RandomSampler: num_samples={num_samples} must be at least 1")
        self.data_source, self.replacement = data_source, replacement
        self.generator, self._samples = generator, num_samples

    @property
    def num_samples(self) -> int:
        """The number of indices that an iteration yields."""
        return len(self.data_source) if self._samples is None else self._samples

    def __iter__(self) -> Iterator[int]:
        n, wanted = len(self.data_source), self.num_samples
        with drawing_from(self.generator):
            if self.replacement:
                return iter(randint(n, (wanted,)).tolist())
            orders = [randperm(n).tolist() for _ in range(-(-wanted // max(n, 1)))]
        return islice((i for order in orders for i in order), wanted)

    def __len__(self) -> int:
        return self.num_samples


class SubsetRandomSampler(Sampler[int]):
    """Yields the given indices in a new random order each time."""

    def __init__(self, indices: Sequence[int], generator: Generator | None = None) -> None:
        self.indices, self.generator = indices, generator

    def __iter__(self) -> Iterator[int]:
        with drawing_from(self.generator):
            order = randperm(len(self.indices)).tolist()
        return (self.indices[i] for i in order)

    def __len__(self) -> int:
        return len(self.indices)


class WeightedRandomSampler(Sampler[int]):
    """Draws `num_samples` indices in proportion to `weights`."""

    def __init__(
        self,
        weights: Sequence[float],
        num_samples: int,
        replacement: bool = True,
        generator: Generator | None = None,
    ) -> None:
        self.weights = on_host(weights)
        self.num_samples, self.replacement, self.generator = num_samples, replacement, generator

    def __iter__(self) -> Iterator[int]:
        with drawing_from(self.generator):
            return iter(multinomial(self.weights, self.num_samples, self.replacement).tolist())

    def __len__(self) -> int:
        return self.num_samples


class BatchSampler(Sampler[list[Any]]):
    """Yields lists of `batch_size` indices from another sampler; a shorter last one is left out
    with `drop_last`."""

    def __init__(self, sampler: Iterable[Any], batch_size: int, drop_last: bool) -> None:
        if batch_size < 1:
            raise ValueError(f"BatchSampler: batch_size={batch_size} must be at least 1")
        self.sampler, self.batch_size, self.drop_last = sampler, batch_size, drop_last

    def __iter__(self) -> Iterator[list[Any]]:
        return self._batches(iter(self.sampler))  # the order is drawn now, not with the first batch

    def _batches(self, indices: Iterator[Any]) -> Iterator[list[Any]]:
        while batch := [*islice(indices, self.batch_size)]:
            if len(batch) == self.batch_size or not self.drop_last:
                yield batch

    def __len__(self) -> int:
        n = len(self.sampler)  # type: ignore[arg-type]
        return n // self.batch_size if self.drop_last else -(-n // self.batch_size)
