"""Mesh: the ranks of a job as a grid with a named axis for each way of being parallel.

Mesh({"pp": 2, "dp": 3})          dp ─►
                              pp   0  1  2       group(4, "dp") = (3, 4, 5)
                              │    3  4  5       group(4, "pp") = (1, 4)
                              ▼
"""

from collections.abc import Mapping
from typing import Self

import numpy as np


class Mesh:
    """`axes` name the lengths of the grid, the axis whose neighbours have successive ranks last."""

    def __init__(self, axes: Mapping[str, int]) -> None:
        self.axes = dict(axes)
        self._grid = np.arange(np.prod(list(axes.values()), dtype=int)).reshape(*axes.values())

    @classmethod
    def filled(cls, ranks: int, dp: int | None) -> Self:
        """All ranks along dp, which may be given, and must then be as many."""
        if dp is not None and dp != ranks:
            raise ValueError(
                f"dp {dp} does not fit {ranks} rank{'s' * (ranks != 1)}: "
                f"start it with mpirun -n {dp}, or leave dp out"
            )
        return cls({"dp": ranks})

    @property
    def size(self) -> int:
        """The number of ranks."""
        return self._grid.size

    def place(self, rank: int) -> dict[str, int]:
        """Where a rank stands on each axis."""
        where = np.unravel_index(rank, self._grid.shape)
        return {axis: int(i) for axis, i in zip(self.axes, where, strict=True)}

    def group(self, rank: int, axis: str) -> tuple[int, ...]:
        """The ranks that differ from this one along one axis only, itself included."""
        at = tuple(slice(None) if a == axis else i for a, i in self.place(rank).items())
        return tuple(self._grid[at].tolist())
