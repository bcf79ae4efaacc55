"""The sizes of the micro-batches of a rank."""

import numpy as np

from nnmpi.data.loader import BatchSplit
from nnmpi.parallel.arrangement.arrangement import Arrangement
from nnmpi.parallel.mesh import BATCH


def micro_batches(a: Arrangement, rank: int, batch: int) -> list[int]:
    """Returns the number of samples in each micro-batch of a rank, for a batch."""
    if a.strategy.micro_batches:
        return a.strategy.micro_batches(a, rank, batch)
    group = a.mesh.group(rank, *BATCH)
    split = BatchSplit(a.config.micro_batches, len(group), group.index(rank))
    return [len(part) for part in split(np.arange(batch))]
