"""Makes batches of a split: draws the order of its rows, and gathers and standardises their
samples, in advance in a background thread.

If the lengths of the samples are given (--bucket-by-length), each batch has samples of similar
length, so that little padding is computed. The order of the batches is random; a batch with fewer
samples than the others comes last:

lengths of the samples, sorted    2 2 3 | 3 4 | 5 5 6 | 7 7 9
batches, in the order drawn       5 5 6,  2 2 3,  7 7 9,  3 4
"""

import sys
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextvars import copy_context
from dataclasses import dataclass
from functools import partial
from itertools import islice
from queue import SimpleQueue
from threading import Event, Semaphore, Thread
from typing import NamedTuple, TypeVar

import numpy as np

from nnmpi.arrays import dtypes, keyed
from nnmpi.data.augment import augmented, check_images
from nnmpi.data.dataset import Split
from nnmpi.data.inputs import Inputs, arrays, described, each, is_index, is_one_row, take
from nnmpi.data.standardise import Standardiser
from nnmpi.options.value_forms import Augment

T = TypeVar("T")

SMALL = 16 << 20  # splits of up to so many bytes are kept as a standardised copy


class Batch(NamedTuple):
    """Standardised samples, their labels or targets, and their row numbers in the split.

    x: (B, ...) in the structure of the split: floats of one dtype, and indices unchanged
    y: (B, ...), as in the split
    samples: int64, (B,), the row numbers: keys for per-sample randomness such as dropout
    positions: the positions of the sequences that x and y have; None: all of them

    If x or y was not requested (see WantedFields), it has length 0.
    """

    x: Inputs
    y: np.ndarray
    samples: np.ndarray
    positions: np.ndarray | None = None


class WantedFields(NamedTuple):
    """The parts of a batch that a rank needs: a pipeline needs x on its first rank and y on its
    last; a context-parallel rank needs only some `positions` of the sequences."""

    x: bool = True
    y: bool = True
    positions: np.ndarray | None = None


X_AND_Y = WantedFields()


class StepBatch(NamedTuple):
    """The data of one step: the row numbers of the global batch, this rank's samples of each
    micro-batch, and the number by which the loss, summed over samples, is divided."""

    rows: np.ndarray
    micro: Sequence[Batch]
    divisor: float


BatchCut = Callable[[np.ndarray], Sequence[np.ndarray]]
"""Maps the rows of a global batch to the rows of each micro-batch that this rank computes."""


@dataclass(frozen=True)
class BatchSplit:
    """Cuts the row numbers of a batch into micro-batches, and each into one part per rank; returns
    this rank's part of each micro-batch.

    7 rows, 2 micro-batches, 3 ranks     0 1 2 | 3 4 5 6      rank 0  0 | 3
                                                              rank 1  1 | 4
                                                              rank 2  2 | 5 6
    """

    micro_batches: int
    ranks: int
    rank: int

    def __call__(self, rows: np.ndarray) -> list[np.ndarray]:
        parts = min(self.micro_batches, len(rows))  # no empty micro-batches
        return [part_of(part_of(rows, parts, m), self.ranks, self.rank) for m in range(parts)]


def part_of(rows: np.ndarray, parts: int, i: int) -> np.ndarray:
    """Returns part i of the rows, in consecutive parts of about equal lengths."""
    return rows[len(rows) * i // parts : len(rows) * (i + 1) // parts]


class Loader:
    """The batches of a split, epoch by epoch; the last batch may be smaller.

    A small split is standardised as a whole when the Loader is made. Of a large one, batches are
    standardised when they are needed: by a thread, `prefetch` batches in advance (0: no thread).
    The batches have the same values either way.

    divisor: maps the labels of a batch to the number by which the sum of their losses is divided
    lengths: the length of each sample, (N,), to make batches of samples of similar length
    augment: how images are varied, differently in each epoch (see nnmpi.data.augment)
    """

    def __init__(
        self,
        split: Split,
        batch_size: int,
        *,
        standardiser: Standardiser,
        dtype: str = "float32",
        seed: int = 0,
        shuffle: bool = True,
        prefetch: int = 2,
        divisor: Callable[[np.ndarray], float] = len,
        lengths: np.ndarray | None = None,
        augment: Augment | None = None,
    ) -> None:
        for samples in map(len, arrays(split.x)):
            if samples != len(split.y) or not samples:
                raise ValueError(
                    f"the split has {samples:,} samples and {len(split.y):,} labels; "
                    "it needs as many labels as samples, and at least one"
                )
        if augment:
            check_images(split, augment)
        x = each(_contiguous, split.x)
        self.split = Split(x, _contiguous(split.y))
        self.standardiser = standardiser.shaped_for(x)
        self.batch_size, self.divisor, self.lengths = batch_size, divisor, lengths
        self.augment = augment
        self.dtype, self.seed, self.shuffle = dtypes.named(dtype), seed, shuffle
        # indices need no copy: standardising leaves them unchanged
        copied = sum(array.size for array in arrays(x) if not is_index(array))
        small = copied * self.dtype.itemsize <= SMALL
        self.standardised: Inputs | None = self.standardiser.apply(x, self.dtype) if small else None
        self.prefetch = 0 if small else prefetch

    def __len__(self) -> int:
        """The number of batches in an epoch."""
        return (len(self.split.y) + self.batch_size - 1) // self.batch_size

    def batches(self, epoch: int) -> Iterator[np.ndarray]:
        """Yields the row numbers of each batch, which depend on seed and epoch alone."""
        n = len(self.split.y)
        key = keyed.key(self.seed, "order", epoch)
        order = keyed.permutation(key, n) if self.shuffle else np.arange(n)
        if self.lengths is not None:
            return iter(by_length(order, self.lengths, self.batch_size, self.seed, epoch))
        return (order[i : i + self.batch_size] for i in range(0, n, self.batch_size))

    def gather(
        self, rows: np.ndarray, fields: WantedFields = X_AND_Y, epoch: int | None = None
    ) -> Batch:
        """Returns the batch of the given rows of the split; with `epoch`, images are augmented."""
        wanted = rows if fields.x else rows[:0]
        if self.standardised is not None:
            x = take(self.standardised, wanted)
        else:
            x = self.standardiser.apply(take(self.split.x, wanted), self.dtype)
        if self.augment and epoch is not None and isinstance(x, np.ndarray):
            x = augmented(x, self.augment, self.seed, epoch, wanted)
        y = self.split.y.take(rows if fields.y else rows[:0], axis=0)
        if fields.positions is not None:
            x = each(lambda array: array.take(fields.positions, axis=1), x)
            y = y.take(fields.positions, axis=1) if y.ndim > 1 else y
        return Batch(x, y, rows, fields.positions)

    def epoch(self, epoch: int) -> Generator[Batch, None, None]:
        """Yields the batches of an epoch; to stop early, close the generator or drop it."""
        batches = (self.gather(rows, epoch=epoch) for rows in self.batches(epoch))
        return prefetch(batches, self.prefetch) if self.prefetch else batches

    def loads(
        self, epoch: int, cut: BatchCut, first: int = 0, fields: WantedFields = X_AND_Y
    ) -> Generator[StepBatch, None, None]:
        """Yields the data of each step of an epoch, from batch number `first` on. cut(rows) returns
        the rows of a batch that this rank computes, for each micro-batch; only these are read."""
        loads = self._loads(epoch, cut, first, fields)
        return prefetch(loads, self.prefetch) if self.prefetch else loads

    def _loads(
        self, epoch: int, cut: BatchCut, first: int, fields: WantedFields
    ) -> Generator[StepBatch, None, None]:
        for rows in islice(self.batches(epoch), first, None):
            micro = [*map(partial(self.gather, fields=fields, epoch=epoch), cut(rows))]
            yield StepBatch(rows, micro, self.divisor(self.split.y.take(rows, axis=0)))


def _contiguous(array: np.ndarray) -> np.ndarray:
    """Returns the array with contiguous rows; windows of text and repeated rows stay."""
    if not isinstance(array, np.ndarray) or is_one_row(array):
        return array
    return np.ascontiguousarray(array)


# ---- computing the next items in a background thread


class _EndOfItems(NamedTuple):
    """The end of prefetched items in a queue, with the error that ended them, if any."""

    error: BaseException | None


def prefetch(items: Iterable[T], depth: int) -> Generator[T, None, None]:
    """Yields the items, of which a background thread computes up to `depth` in advance.

    An error in the thread is raised in the consumer, after the items that were computed before it.
    If the consumer stops early, by `break` or by an error, the thread finishes the item in progress
    and is joined. It is a daemon thread, so the interpreter does not wait for it at exit, as it
    would for the threads of a pool.
    """
    queue: SimpleQueue[T | _EndOfItems] = SimpleQueue()
    # depth - 1, because the thread puts an item before it acquires
    free, stop = Semaphore(depth - 1), Event()

    def compute() -> None:
        error: BaseException | None = None
        try:
            for item in items:
                queue.put(item)
                free.acquire()
                if stop.is_set():
                    break
        except BaseException as caught:  # any error at all: the consumer must not wait for ever
            error = caught
        queue.put(_EndOfItems(error))

    target = partial(copy_context().run, compute)  # a new thread has no context variables of ours
    thread = Thread(target=target, name="nnmpi-prefetch", daemon=True)
    thread.start()
    try:
        while not isinstance(item := queue.get(), _EndOfItems):
            free.release()
            yield item
        if item.error is not None:
            raise item.error
    finally:
        if not sys.is_finalizing():  # at exit the thread is frozen: joining it would hang
            stop.set()
            free.release()
            thread.join()


# ---- batches of samples of similar length


def lengths_of(x: Inputs, name: str) -> np.ndarray:
    """The lengths of samples, the input `lengths`; raises ValueError if there is none."""
    lengths = x.get("lengths") if isinstance(x, dict) else None
    if lengths is None or lengths.ndim != 1 or not is_index(lengths):
        shown_as = (
            described(x)
            if lengths is None
            else f"{lengths.dtype} of shape {lengths.shape} as lengths"
        )
        raise ValueError(
            f"--bucket-by-length sorts samples by their input named lengths, and data {name} has "
            f"{shown_as}: give x as a dict with lengths, (N,) integers"
        )
    return lengths


def by_length(
    order: np.ndarray, lengths: np.ndarray, batch_size: int, seed: int, epoch: int
) -> list[np.ndarray]:
    """Returns the row numbers of each batch of an epoch, with samples of similar lengths.

    `order` has the shuffled row numbers of the split. They are sorted by length, where equal
    lengths keep this order, and cut into batches of `batch_size`, which are returned in random
    order. If one batch has to be smaller, it comes last; which lengths it has is random too.
    """
    rows = order[np.argsort(lengths[order], kind="stable")]
    full_batches, remainder = divmod(len(rows), batch_size)
    smaller = int(keyed.permutation(keyed.key(seed, "smaller batch", epoch), full_batches + 1)[0])
    sizes = [batch_size] * full_batches
    sizes.insert(smaller, remainder)
    batches = np.split(rows, np.cumsum(sizes)[:-1])
    last = [batches.pop(smaller)]
    drawn = keyed.permutation(keyed.key(seed, "batches", epoch), full_batches)
    return [batches[i] for i in drawn] + last * (remainder > 0)


def padding(lengths: np.ndarray, batches: Iterable[np.ndarray]) -> float:
    """Returns the share of padding, from 0 to 1, if each batch is padded to its longest sample."""
    counts = [(lengths[rows].max() * len(rows), lengths[rows].sum()) for rows in batches]
    positions, tokens = np.sum(counts, axis=0)
    return float(1 - tokens / max(positions, 1))
