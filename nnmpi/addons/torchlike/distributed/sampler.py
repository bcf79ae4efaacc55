"""DistributedSampler: each rank's part of the indices of a data set."""

import math
from collections.abc import Iterator
from typing import Any

import numpy as np

from nnmpi.addons.torchlike.distributed.group import joined


class DistributedSampler:
    """Yields the indices of this rank's samples: every `num_replicas`-th index of an order of all
    samples, starting with number `rank`.

    All ranks get equally many: the order is extended by indices from its start, or with `drop_last`
    cut. With `shuffle` it depends on the seed and on `set_epoch`, to be called before each epoch.
    """

    def __init__(
        self,
        dataset: Any,
        num_replicas: int | None = None,
        rank: int | None = None,
        shuffle: bool = True,
        seed: int = 0,
        drop_last: bool = False,
    ) -> None:
        self.dataset, self.shuffle, self.seed, self.drop_last = dataset, shuffle, seed, drop_last
        self.num_replicas = joined().size() if num_replicas is None else num_replicas
        self.rank = joined().rank() if rank is None else rank
        if not 0 <= self.rank < self.num_replicas:
            raise ValueError(
                f"DistributedSampler: rank {self.rank} of {self.num_replicas} replicas: use 0 to "
                f"{self.num_replicas - 1}"
            )
        self.epoch = 0
        share = len(dataset) / self.num_replicas
        self.num_samples = math.floor(share) if drop_last else math.ceil(share)
        self.total_size = self.num_samples * self.num_replicas

    def __iter__(self) -> Iterator[int]:
        n = len(self.dataset)
        order = np.arange(n)
        if self.shuffle:
            order = np.random.default_rng((self.seed, self.epoch)).permutation(n)
        if n:
            order = np.resize(order, self.total_size)  # repeats it from its start
        return iter(order[self.rank :: self.num_replicas].tolist())

    def __len__(self) -> int:
        """The number of samples of this rank."""
        return self.num_samples

    def set_epoch(self, epoch: int) -> None:
        """Sets the epoch, on which the order of samples depends."""
        self.epoch = epoch
