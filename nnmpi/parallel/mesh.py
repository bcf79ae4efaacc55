"""Mesh: the ranks of a job as a grid with a named axis for each kind of parallelism.

Mesh({"pp": 2, "dp": 3})          dp ─►
                              pp   0  1  2       group(4, "dp") = (3, 4, 5)
                              │    3  4  5       group(4, "pp") = (1, 4)
                              ▼
"""

import math
from collections.abc import Mapping
from typing import Any, Self

import numpy as np

from nnmpi.options.features import OPTIONS, MeshAxis

AXES = (
    MeshAxis("dp", replicas=True, batch=True),
    *(axis for part in OPTIONS.rows() for axis in part.axes),
    MeshAxis("pp"),
    MeshAxis("tp", same_loss=True, cuts="layers"),
)
"""All axes of a mesh, those of add-ons after dp. Other tables are keyed by their names: how a model
is cut (`run/setup/cutting.py`), which part of an activation a rank has (`LOCAL_SHAPES` in
`parallel/arrangement/arrangement.py`), what ranks send (`parallel/facts/exchanges.py`)."""

REPLICAS = tuple(axis.name for axis in AXES if axis.replicas)
"""The axes whose ranks have copies of the same parameters."""
MODEL = tuple(axis.name for axis in AXES if not axis.replicas)
"""The axes whose ranks hold one model together."""
BATCH = tuple(axis.name for axis in AXES if axis.batch)
"""The axes whose ranks share each batch."""
CUT_BY_AXIS = {axis.name: axis.cuts for axis in reversed(AXES) if axis.cuts}
"""By axis of the mesh, what is cut along it, as text, such as {"tp": "layers"}."""


def sizes_text(sizes: Mapping[str, int]) -> str:
    """Returns the axes with several ranks, as "dp 2 x tp 4", or "one rank"."""
    return " x ".join(f"{axis} {n}" for axis, n in sizes.items() if n > 1) or "one rank"


class Mesh:
    """A grid of ranks, by size of each axis; the last axis varies fastest."""

    def __init__(self, axes: Mapping[str, int]) -> None:
        self.axes = dict(axes)
        self._groups: dict[tuple[Any, ...], tuple[int, ...]] = {}  # those asked for so far
        self._grid = np.arange(np.prod(list(axes.values()), dtype=int)).reshape(*axes.values())

    @classmethod
    def filled(cls, ranks: int, sizes: Mapping[str, int | None], order: str = "tp,dp,pp") -> Self:
        """Returns a mesh with the given axis sizes (1 by default); dp, unless given, is the number
        of ranks divided by the others. Ranks are consecutive along the first axis of `order`.

        Raises ValueError if the sizes do not fit the number of ranks.
        """
        dp, sizes_of = sizes.get("dp"), {axis.name: sizes.get(axis.name) or 1 for axis in AXES}
        # the ranks that together have all parameters, and all positions of sequences
        copy_ranks = math.prod(sizes_of.values()) // sizes_of["dp"]
        sizes_of["dp"] = dp or max(1, ranks // copy_ranks)
        wanted = copy_ranks * sizes_of["dp"]
        if wanted != ranks:
            others = [axis for axis, n in sizes_of.items() if n > 1 and axis != "dp"]
            asked = [f"{axis} {sizes_of[axis]}" for axis in [*["dp"] * (dp is not None), *others]]
            remedy = "leave dp out" if dp else f"use another --{' or --'.join(others)}"
            raise ValueError(
                f"{' x '.join(asked)} does not fit {ranks} rank{'s' * (ranks != 1)}: "
                f"take {wanted} (mpirun -n {wanted}; in a simulation --ranks {wanted}), or {remedy}"
            )
        names = order.split(",")
        for axis in AXES:
            if axis.before:
                names.insert(names.index(axis.before), axis.name)
        return cls({name: sizes_of[name] for name in reversed(names)})

    @property
    def size(self) -> int:
        """The number of ranks."""
        return self._grid.size

    def count(self, *axes: str) -> int:
        """Returns the product of these axes' sizes, 1 for one that is missing."""
        return math.prod(self.axes.get(axis, 1) for axis in axes)

    def coordinates(self, rank: int) -> dict[str, int]:
        """Returns the coordinate of a rank along each axis."""
        by_axis = {}
        for axis, n in reversed(self.axes.items()):
            rank, by_axis[axis] = divmod(rank, n)
        return {axis: by_axis[axis] for axis in self.axes}

    def rank(self, at: Mapping[str, int]) -> int:
        """Returns the rank at coordinates `at`, which has all axes."""
        return int(self._grid[tuple(at[axis] for axis in self.axes)])

    def coordinates_of_all(self) -> dict[str, np.ndarray]:
        """Returns an array for each axis with the coordinates of all ranks along it."""
        places = np.indices(self._grid.shape).reshape(len(self.axes), -1)
        return dict(zip(self.axes, places, strict=True))

    def groups(self, *axes: str) -> list[tuple[int, ...]]:
        """Returns all groups of ranks that differ along these axes only, each once."""
        rest = [i for i, axis in enumerate(self.axes) if axis not in axes]
        along = [i for i, axis in enumerate(self.axes) if axis in axes]
        length = math.prod(self._grid.shape[i] for i in along)
        rows = self._grid.transpose(rest + along).reshape(-1, length)
        return [tuple(row) for row in rows.tolist()]

    def group(self, rank: int, *axes: str) -> tuple[int, ...]:
        """Returns the ranks that differ from `rank` along these axes only, itself included."""
        at = self.coordinates(rank)
        key = axes, *(i for axis, i in at.items() if axis not in axes)
        if key not in self._groups:
            index = tuple(slice(None) if axis in axes else i for axis, i in at.items())
            self._groups[key] = tuple(self._grid[index].reshape(-1).tolist())
        return self._groups[key]
