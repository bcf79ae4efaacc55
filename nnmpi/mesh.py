"""Mesh: the ranks of a job as a grid with a named axis for each way of being parallel.

Mesh({"pp": 2, "dp": 3})          dp ─►
                              pp   0  1  2       group(4, "dp") = (3, 4, 5)
                              │    3  4  5       group(4, "pp") = (1, 4)
                              ▼
"""

import math
from collections.abc import Mapping
from typing import Self

import numpy as np

REPLICAS = ("dp", "cp")
"""The axes along which ranks have copies of the same parameters, and sum their gradients."""


class Mesh:
    """`axes` are the lengths of the grid by name; ranks along the last axis are consecutive."""

    def __init__(self, axes: Mapping[str, int]) -> None:
        self.axes = dict(axes)
        self._grid = np.arange(np.prod(list(axes.values()), dtype=int)).reshape(*axes.values())

    @classmethod
    def filled(
        cls,
        ranks: int,
        dp: int | None,
        pp: int = 1,
        tp: int = 1,
        order: str = "tp,dp,pp",
        cp: int = 1,
    ) -> Self:
        """dp x cp x pp x tp ranks; by default dp is what there are ranks for.

        `order` names the axes: along the first one ranks are consecutive. cp comes before dp.
        """
        one = pp * tp * cp  # ranks that have all parameters and positions
        wanted = one * (dp or max(1, ranks // one))
        if wanted != ranks:
            asked = [f"dp {dp}"] * (dp is not None)
            asked += [f"{axis} {n}" for axis, n in (("pp", pp), ("tp", tp), ("cp", cp)) if n > 1]
            remedy = "leave dp out" if dp else "use another --pp, --tp or --cp"
            raise ValueError(
                f"{' x '.join(asked)} does not fit {ranks} rank{'s' * (ranks != 1)}: "
                f"start it with mpirun -n {wanted}, or {remedy}"
            )
        sizes = {"dp": ranks // one, "cp": cp, "pp": pp, "tp": tp}
        axes = order.replace("dp", "cp,dp").split(",")
        return cls({axis: sizes[axis] for axis in reversed(axes)})

    @property
    def size(self) -> int:
        """The number of ranks."""
        return self._grid.size

    def count(self, *axes: str) -> int:
        """How many ranks differ along these axes only; an axis that is not there has one."""
        return math.prod(self.axes.get(axis, 1) for axis in axes)

    def coordinates(self, rank: int) -> dict[str, int]:
        """The position of a rank along each axis."""
        where = np.unravel_index(rank, self._grid.shape)
        return {axis: int(i) for axis, i in zip(self.axes, where, strict=True)}

    def groups(self, *axes: str) -> list[tuple[int, ...]]:
        """All groups of ranks along these axes, each once."""
        rest = [i for i, axis in enumerate(self.axes) if axis not in axes]
        along = [i for i, axis in enumerate(self.axes) if axis in axes]
        length = math.prod(self._grid.shape[i] for i in along)
        rows = self._grid.transpose(rest + along).reshape(-1, length)
        return [tuple(row) for row in rows.tolist()]

    def group(self, rank: int, *axes: str) -> tuple[int, ...]:
        """The ranks that differ from this one along these axes only, itself included."""
        at = tuple(slice(None) if a in axes else i for a, i in self.coordinates(rank).items())
        return tuple(self._grid[at].reshape(-1).tolist())
