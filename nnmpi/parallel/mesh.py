"""Mesh: the ranks of a job as a grid with a named axis for each way of being parallel.

Mesh({"pp": 2, "dp": 3})          dp ─►
                              pp   0  1  2       group(4, "dp") = (3, 4, 5)
                              │    3  4  5       group(4, "pp") = (1, 4)
                              ▼
"""

import math
from collections.abc import Mapping
from typing import Any, NamedTuple, Self

import numpy as np


class MeshAxis(NamedTuple):
    """A way of being parallel: a row of `AXES`.

    name        also of the option that says how many ranks there are along it
    replicas    whether these have copies of the same parameters, and sum their gradients
    batch       whether they share each batch, with samples of their own
    same_loss   whether all compute the same loss, so that one of them counts it
    before      the axis that it comes before in any order; "": --order names it
    cuts        what of a model or its data is cut for them, in the first lines of a run
    """

    name: str
    replicas: bool = False
    batch: bool = False
    same_loss: bool = False
    before: str = ""
    cuts: str = ""


AXES = (
    MeshAxis("dp", replicas=True, batch=True),
    MeshAxis("cp", replicas=True, before="dp", cuts="sequences"),
    MeshAxis("pp"),
    MeshAxis("tp", same_loss=True, cuts="layers"),
)
"""Names by which tables say what ranks along an axis do: how a model is cut for them
(`run/setup/cutting.py`), which part of an activation they have (`LOCAL_SHAPES`, in
`parallel/arrangement/arrangement.py`) and what they tell each other (`paper/log.py`)."""

REPLICAS = tuple(axis.name for axis in AXES if axis.replicas)
"""The axes of ranks that have copies of the same parameters."""
MODEL = tuple(axis.name for axis in AXES if not axis.replicas)
"""The axes of ranks that hold one model together."""
BATCH = tuple(axis.name for axis in AXES if axis.batch)
"""The axes of ranks that share each batch."""
CUTS = {axis.name: axis.cuts for axis in reversed(AXES) if axis.cuts}


class Mesh:
    """`axes` are the lengths of the grid by name; ranks along the last axis are consecutive."""

    def __init__(self, axes: Mapping[str, int]) -> None:
        self.axes = dict(axes)
        self._groups: dict[tuple[Any, ...], tuple[int, ...]] = {}  # that were asked for
        self._grid = np.arange(np.prod(list(axes.values()), dtype=int)).reshape(*axes.values())

    @classmethod
    def filled(cls, ranks: int, sizes: Mapping[str, int | None], order: str = "tp,dp,pp") -> Self:
        """A mesh with these axis sizes, 1 by default; dp, unless given, takes the others.

        `order` names the axes: along the first one ranks are consecutive.
        """
        dp, sizes_of = sizes.get("dp"), {axis.name: sizes.get(axis.name) or 1 for axis in AXES}
        copy_ranks = (
            math.prod(sizes_of.values()) // sizes_of["dp"]
        )  # ranks with all parameters and positions
        sizes_of["dp"] = dp or max(1, ranks // copy_ranks)
        wanted = copy_ranks * sizes_of["dp"]
        if wanted != ranks:
            others = [axis for axis, n in sizes_of.items() if n > 1 and axis != "dp"]
            asked = [f"{axis} {sizes_of[axis]}" for axis in [*["dp"] * (dp is not None), *others]]
            remedy = "leave dp out" if dp else f"use another --{' or --'.join(others)}"
            raise ValueError(
                f"{' x '.join(asked)} does not fit {ranks} rank{'s' * (ranks != 1)}: "
                f"start it with mpirun -n {wanted}, or {remedy}"
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
        """How many ranks differ along these axes only; an axis that is not there has one."""
        return math.prod(self.axes.get(axis, 1) for axis in axes)

    def coordinates(self, rank: int) -> dict[str, int]:
        """The position of a rank along each axis."""
        by_axis = {}
        for axis, n in reversed(self.axes.items()):
            rank, by_axis[axis] = divmod(rank, n)
        return {axis: by_axis[axis] for axis in self.axes}

    def rank(self, at: Mapping[str, int]) -> int:
        """The rank at a position along each axis."""
        return int(self._grid[tuple(at[axis] for axis in self.axes)])

    def coordinates_of_all(self) -> dict[str, np.ndarray]:
        """The positions of all ranks along each axis."""
        places = np.indices(self._grid.shape).reshape(len(self.axes), -1)
        return dict(zip(self.axes, places, strict=True))

    def groups(self, *axes: str) -> list[tuple[int, ...]]:
        """All groups of ranks along these axes, each once."""
        rest = [i for i, axis in enumerate(self.axes) if axis not in axes]
        along = [i for i, axis in enumerate(self.axes) if axis in axes]
        length = math.prod(self._grid.shape[i] for i in along)
        rows = self._grid.transpose(rest + along).reshape(-1, length)
        return [tuple(row) for row in rows.tolist()]

    def group(self, rank: int, *axes: str) -> tuple[int, ...]:
        """The ranks that differ from this one along these axes only, itself included."""
        at = self.coordinates(rank)
        key = axes, *(i for axis, i in at.items() if axis not in axes)
        if key not in self._groups:
            index = tuple(slice(None) if axis in axes else i for axis, i in at.items())
            self._groups[key] = tuple(self._grid[index].reshape(-1).tolist())
        return self._groups[key]
