"""PaperComm: a group of ranks on paper, which sends nothing, and counts the memory of sums."""

from collections.abc import Sequence
from contextlib import nullcontext
from functools import cache
from typing import Any, Self

import numpy as np

from nnmpi.arrays.backend import META
from nnmpi.arrays.dtypes import types_of
from nnmpi.collectives.step import chunk_start
from nnmpi.comm.allreduce.dispatch import power_of_two
from nnmpi.comm.allreduce.node_memory import memory_of_sums
from nnmpi.parallel.arrangement.arrangement import Arrangement
from nnmpi.parallel.arrangement.cluster import LIBRARY_SUMS
from nnmpi.parallel.layout import Layout, summed_axes
from nnmpi.parallel.mesh import AXES, BATCH, MODEL


class SumsMemory:
    """The memory that all communicators of one rank together would allocate for sums.

    narrow     True if sums of 16-bit values travel in 16 bits
    windows    bytes of the node's shared memory, by what they are for
    wide_copy  bytes of the longest float32 copy of 16-bit terms that a library sums
    """

    def __init__(self, a: Arrangement, rank: int) -> None:
        self.rank, self.narrow = rank, a.is_mixed and a.sums_dtype is None
        self._nodes, self.near = a.cluster.nodes, cache(self._near)
        self.windows: dict[tuple[Any, ...], int] = {}
        self.wide_copy = 0

    def add_sum(self, name: str, members: tuple[int, ...], n: int, dtype: np.dtype[Any]) -> None:
        """Counts sums of n elements over `members`: the window's part and a wide copy."""
        of_library = name in LIBRARY_SUMS.where
        if of_library and types_of(dtype).is_mixed and not self.narrow:
            self.wide_copy = max(self.wide_copy, n * types_of(dtype).sums.itemsize)
        spans_nodes = len(self.near(members)) < len(members)
        if name == "shared" or (name == "hierarchical" and spans_nodes):
            self.add((members, power_of_two(n), dtype), members, power_of_two(n), dtype)

    def add(
        self, key: tuple[Any, ...], members: tuple[int, ...], n: int, dtype: np.dtype[Any]
    ) -> None:
        """Counts, once for each `key`, this rank's part of the memory in which its node sums."""
        is_first = members[self.near(members)[0]] == self.rank
        share = memory_of_sums(n, dtype, 1)
        self.windows[key] = share if is_first else memory_of_sums(n, dtype, 2) - share

    def _near(self, members: tuple[int, ...]) -> tuple[int, ...]:
        """Returns the places in `members` of those that are on the node of this rank."""
        nodes, here = self._nodes, self._nodes[self.rank]
        return tuple(place for place, member in enumerate(members) if nodes[member] == here)


class PaperComm:
    """A communicator of one rank on paper, with the ranks `members` along `axis`."""

    def __init__(self, members: Sequence[int], axis: str, memory: SumsMemory) -> None:
        self.members, self.axis, self._memory = tuple(members), axis, memory
        self.rank, self.size = self.members.index(memory.rank), len(members)
        self.name, self.narrow_sums, self.progress_thread = axis, memory.narrow, nullcontext

    def all_reduce(self, array: Any, algorithm: str = "auto") -> None:
        """Counts the memory that sums of arrays like this one would take."""
        if self.size > 1:
            self._memory.add_sum(algorithm, self.members, array.size, array.dtype)

    def chunk(self, n: int) -> slice:
        """Returns this rank's slice of n elements in `reduce_scatter` and `all_gather`."""
        return slice(chunk_start(n, self.size, self.rank), chunk_start(n, self.size, self.rank + 1))

    def split(self, color: int) -> Self:
        """Returns a Comm of the same ranks, as if all had given the same color."""
        return type(self)(self.members, self.axis, self._memory)

    def subset(self, ranks: Sequence[int], narrow_sums: bool = False) -> Self | None:
        """Returns a Comm of the ranks with these numbers in the job; None for no ranks."""
        return type(self)(ranks, "dp", self._memory) if ranks else None

    def barrier(self) -> None:
        """Returns at once, since there are no others to wait for."""

    poll = barrier

    def node(self) -> tuple[int, ...]:
        """The indices, in this Comm, of the ranks that are on the same node as this rank."""
        return self._memory.near(self.members)

    def shared(self, n: int, dtype: Any) -> "PaperBuffer":
        """Returns a buffer without data for sums in shared memory; counts it."""
        self._memory.add(("shared", len(self._memory.windows)), self.members, n, np.dtype(dtype))
        return PaperBuffer(self, n, dtype)

    def node_memory(self, n: int, dtype: Any) -> "PaperBuffer":
        """Returns a shared array without data; its bytes count on the node's first rank."""
        is_first = self.node()[0] == self.rank
        nbytes = n * np.dtype(dtype).itemsize * is_first
        self._memory.windows["node memory", len(self._memory.windows)] = nbytes
        return PaperBuffer(self, n, dtype)


class PaperBuffer:
    """Stands for memory that a node's ranks share, without data."""

    def __init__(self, comm: PaperComm, n: int, dtype: Any) -> None:
        self._ranks = len(comm.node())
        self.mine, self.total, self.array = (META.xp.empty(n, dtype) for _ in range(3))

    def own(self, start: int, stop: int, r: int) -> slice:
        """Returns the slice of elements `start` to `stop` - 1 that rank r of the node adds up."""
        n, p = stop - start, self._ranks
        return slice(start + chunk_start(n, p, r), start + chunk_start(n, p, r + 1))

    def barrier(self) -> None:
        """Returns at once, since there are no others to wait for."""


def layout_on_paper(a: Arrangement, rank: int, memory: SumsMemory) -> Layout:
    """Returns the Layout of a rank on paper; its communicators count their memory in `memory`."""
    mesh = a.mesh

    def group(name: str, *axes: str) -> Any:
        return PaperComm(mesh.group(rank, *axes) if rank < mesh.size else (rank,), name, memory)

    axis = {row.name: group(row.name, row.name) for row in AXES}
    batch, replicas = (
        axis["dp"] if "dp" in axes and mesh.count(*axes) == mesh.count("dp") else group("dp", *axes)
        for axes in (BATCH, summed_axes(a.config))
    )
    everyone: Any = PaperComm(range(a.ranks), "all", memory)
    alone: Any = PaperComm((rank,), "all", memory)
    return Layout(
        *(mesh, a.servers, everyone, axis, batch, replicas, group("model", *MODEL), alone),
        memory.narrow,
    )
