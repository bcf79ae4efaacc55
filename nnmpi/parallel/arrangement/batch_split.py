"""Which samples of a batch a rank computes, by their position in the batch alone."""

from dataclasses import dataclass

import numpy as np

from nnmpi.collectives.step import cut


@dataclass(frozen=True)
class BatchSplit:
    """Cuts a batch into micro-batches, and each of these over ranks; keeps this rank's parts.

    7 rows, 2 micro-batches, 3 ranks     0 1 2 | 3 4 5 6      rank 0  0 | 3
                                                              rank 1  1 | 4
                                                              rank 2  2 | 5 6
    """

    micro_batches: int
    ranks: int
    rank: int

    def __call__(self, rows: np.ndarray) -> list[np.ndarray]:
        parts = min(self.micro_batches, len(rows))  # none is empty
        return [part_of(part_of(rows, parts, m), self.ranks, self.rank) for m in range(parts)]


def part_of(rows: np.ndarray, parts: int, i: int) -> np.ndarray:
    """Part i of so many, as equal as they can be."""
    return rows[cut(len(rows), parts, i) : cut(len(rows), parts, i + 1)]
