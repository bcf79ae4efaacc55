"""PaperComm: a communicator for simulated steps, which sends nothing. It logs each call as an
Exchange, and returns at once.

Buffers are filled as if all ranks had the values of this rank: a sum is `size` times its values, a
gather has them in every place, a received message is zeros. So counts and flags that ranks agree on
are as if all ranks were identical. Arrays without data are not changed.
"""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import cache, partial
from itertools import accumulate, pairwise
from typing import Any, Self

import numpy as np

from nnmpi import addons
from nnmpi.arrays.backend import META
from nnmpi.arrays.dtypes import types_of
from nnmpi.arrays.meta import is_meta
from nnmpi.collectives.algorithms import Collective
from nnmpi.collectives.step import chunk_start
from nnmpi.comm import NoRoomError, OperatingSystem, Parts
from nnmpi.comm.allreduce.dispatch import power_of_two
from nnmpi.comm.allreduce.node_memory import memory_of_sums
from nnmpi.parallel.arrangement.arrangement import Arrangement
from nnmpi.parallel.arrangement.cluster import Cluster
from nnmpi.parallel.arrangement.exchanges import Exchange
from nnmpi.parallel.layout import Layout, summed_axes
from nnmpi.parallel.mesh import AXES, BATCH, MODEL
from nnmpi.planning.paper.log import StepLog
from nnmpi.schedules.op import Kind


class CompletedWork:
    """A Work (non-blocking operation) that is always complete, since a simulated rank has nothing
    to wait for."""

    done = True

    def poll(self) -> bool:
        return True

    def wait(self) -> None:
        return None


COMPLETED = CompletedWork()


class RankState:
    """The state that all PaperComms of one simulated rank share: the log of exchanges, and the
    memory that they would allocate.

    narrow      True if sums of 16-bit values travel in 16 bits
    windows     bytes of the node's shared memory for sums, by group, length and type
    wide_terms  bytes of the longest float32 copy of 16-bit terms that a library sums
    sums_by     a function of a group of ranks: the algorithm of its sums ("shared": through memory
                of the node)
    near        a function of a group: the indices of its members on the same node as this rank
    """

    def __init__(
        self,
        rank: int,
        cluster: Cluster,
        narrow: bool,
        sums_by: Callable[[tuple[int, ...]], str],
        log: StepLog,
    ) -> None:
        self.rank, self.cluster, self.narrow = rank, cluster, narrow
        self.sums_by, self.log = sums_by, log
        self.near = cache(partial(_near, cluster.nodes, rank))
        self.windows: dict[tuple[Any, ...], int] = {}
        self.wide_terms = 0

    def window(self, name: str, members: tuple[int, ...], n: int, dtype: np.dtype[Any]) -> None:
        """Counts the shared memory that this rank would allocate for sums of n elements on its node
        over `members` by the algorithm `name`, and the copy of 16-bit terms of a library."""
        of_library = name in addons.table("library_sums")
        if of_library and types_of(dtype).is_mixed and not self.narrow:
            self.wide_terms = max(self.wide_terms, n * types_of(dtype).sums.itemsize)
        spans_nodes = len(self.near(members)) < len(members)
        if name == "shared" or (name == "hierarchical" and spans_nodes):
            self.count((members, power_of_two(n), dtype), members, power_of_two(n), dtype)

    def count(
        self, key: tuple[Any, ...], members: tuple[int, ...], n: int, dtype: np.dtype[Any]
    ) -> None:
        """Counts, once for each `key`, this rank's part of the memory in which the ranks of
        `members` on its node sum n elements."""
        is_first = members[self.near(members)[0]] == self.rank
        share = memory_of_sums(n, dtype, 1)
        self.windows[key] = share if is_first else memory_of_sums(n, dtype, 2) - share


def _near(nodes: Sequence[int], rank: int, members: tuple[int, ...]) -> tuple[int, ...]:
    node = nodes[rank]
    return tuple(place for place, member in enumerate(members) if nodes[member] == node)


class PaperComm:
    """The communicator of a simulated rank (one whose step is computed on arrays without data),
    with the ranks `members`: sends nothing, and logs its calls as exchanges along `axis`."""

    any_thread, is_abandoned, lost = True, False, ()
    system = OperatingSystem()

    def __init__(self, members: Sequence[int], axis: str, state: RankState) -> None:
        self.members, self.axis, self.state = tuple(members), axis, state
        self.rank, self.size = self.members.index(state.rank), len(members)
        self.name, self.fault_tolerant = f"paper/{axis}", state.cluster.survives
        self.narrow_sums = state.narrow
        self.attributes: dict[str, Any] = {}

    # ---- collectives

    def all_reduce(self, array: Any, algorithm: str = "auto") -> None:
        """Logs a blocking all-reduce; multiplies the array by `size`, as if all ranks had its
        values."""
        self._sum(array, algorithm)
        if not is_meta(array):
            array *= self.size

    def start(self, array: Any, algorithm: str = "auto", copies: Any = None) -> CompletedWork:
        """Logs a non-blocking all-reduce, and returns a Work that is complete; changes nothing."""
        return self._sum(array, algorithm, started=True)

    def reduce_scatter(self, array: Any, algorithm: str = "ring", parts: Parts = None) -> Any:
        """Logs a blocking reduce-scatter, and returns the chunk of the array that this rank would
        sum."""
        self.start_reduce_scatter(array, algorithm, parts)
        edges = self._edges(array.size, parts)
        return array.reshape(-1)[edges[self.rank] : edges[self.rank + 1]]

    def start_reduce_scatter(
        self, array: Any, algorithm: str = "ring", parts: Parts = None, copies: Any = None
    ) -> CompletedWork:
        """Logs a non-blocking reduce-scatter, and returns a Work that is complete; changes nothing.
        `parts` has the lengths of the ranks' slices; None: nearly equal."""
        how = Collective.REDUCE_SCATTER, algorithm
        return self._note(*how, array, edges=self._given(parts), started=True)

    def all_gather(self, array: Any, algorithm: str = "ring", parts: Parts = None) -> None:
        """Logs a blocking all-gather; fills every chunk with the values of this rank's chunk."""
        self._note(Collective.ALL_GATHER, algorithm, array, edges=self._given(parts))
        edges = self._edges(array.size, parts)
        if not is_meta(array) and len({b - a for a, b in pairwise(edges)}) == 1:
            rows = array.reshape(self.size, -1)  # equal chunks: this rank's fits in every place
            rows[...] = rows[self.rank].copy()

    def start_all_gather(
        self, array: Any, algorithm: str = "ring", parts: Parts = None, copies: Any = None
    ) -> CompletedWork:
        """Logs a non-blocking all-gather, and returns a Work that is complete; changes nothing.
        `parts` has the lengths of the ranks' slices; None: nearly equal."""
        how = Collective.ALL_GATHER, algorithm
        return self._note(*how, array, edges=self._given(parts), started=True)

    def broadcast(self, array: Any, root: int = 0, algorithm: str = "tree") -> None:
        """Logs a broadcast; does not change the array."""
        self._note(Collective.BROADCAST, algorithm, array)

    def isend(self, array: Any, to: int, tag: int = 0, copies: Any = None) -> CompletedWork:
        """Logs a message to the rank with index `to`, and returns a Work that is complete."""
        # in a ring every rank sends to its neighbour at once: the first pair is priced for all
        is_of_pair = self.axis in ("pp", "tp")
        ends = (self.state.rank, self.members[to]) if is_of_pair else self.members[:2]
        return self._note(Collective.MESSAGE, "", array, group=ends)

    def irecv(self, array: Any, source: int, tag: int = 0, copies: Any = None) -> CompletedWork:
        """Fills the array with zeros, as if they had been received, and returns a completed
        operation. (Zeros also mean that no other stage asks for a stop.)"""
        if not is_meta(array):
            array[...] = 0
        return COMPLETED

    def chunk(self, n: int) -> slice:
        """Returns the slice, of n elements, that belongs to this rank in `reduce_scatter` and
        `all_gather`."""
        return slice(chunk_start(n, self.size, self.rank), chunk_start(n, self.size, self.rank + 1))

    # ---- groups, agreement, progress

    def split(
        self, color: int | None, key: int | None = None, narrow_sums: bool = False
    ) -> Self | None:
        """Returns a Comm of the same ranks, as if all had given the same color; None if `color` is
        None. `key` and `narrow_sums` have no effect."""
        return None if color is None else type(self)(self.members, self.axis, self.state)

    def subset(self, ranks: Sequence[int], narrow_sums: bool = False) -> Self | None:
        """Returns a PaperComm of the ranks with these numbers in the job, which logs its exchanges
        along dp; None for no ranks. `narrow_sums` has no effect."""
        return type(self)(ranks, "dp", self.state) if ranks else None

    def agree(self, error: BaseException | None) -> None:
        """Raises the error of this rank, if it has one: a simulated rank has no others to ask."""
        if error is not None:
            raise error

    def barrier(self) -> None:
        """Returns at once, since a simulated rank has no others to wait for."""

    meet = free = free_sums = poll = abandon = lambda self, *_: None

    def progress_thread(self, pause: float = 0.0) -> AbstractContextManager[None]:
        """Returns a context that starts no thread, since there are no messages to progress."""
        return nullcontext()

    # ---- memory that a node shares

    def node(self) -> tuple[int, ...]:
        """The indices, in this Comm, of the ranks that are on the same node as this rank."""
        return self.state.near(self.members)

    def shared(self, n: int, dtype: Any) -> "PaperBuffer":
        """Returns a buffer without data for sums of n elements through shared memory, and counts
        its bytes."""
        self.state.count(("shared", len(self.state.windows)), self.members, n, np.dtype(dtype))
        return PaperBuffer(self, n, dtype)

    def node_memory(self, n: int, dtype: Any) -> "PaperBuffer":
        """Returns an array without data that the ranks of a node share; its bytes count on the
        first rank of the node."""
        is_first = self.node()[0] == self.rank
        nbytes = n * np.dtype(dtype).itemsize * is_first
        self.state.windows["node memory", len(self.state.windows)] = nbytes
        return PaperBuffer(self, n, dtype)

    # ---- the log

    def _sum(self, array: Any, algorithm: str, started: bool = False) -> CompletedWork:
        if self.size > 1:
            has_room = self.axis != "tp" or self.state.sums_by(self.members) == "shared"
            if algorithm == "shared" and not has_room:
                raise NoRoomError("no memory that the node shares")
            self.state.window(algorithm, self.members, array.size, array.dtype)
        return self._note(Collective.ALL_REDUCE, algorithm, array, started=started)

    def _note(
        self,
        operation: Collective,
        algorithm: str,
        array: Any,
        group: tuple[int, ...] = (),
        edges: tuple[int, ...] = (),
        started: bool = False,
    ) -> CompletedWork:
        log, group = self.state.log, group or self.members
        if len(group) > 1:
            adds = True in operation.passes and not self.narrow_sums
            # without narrow sums, 16-bit terms are added in float32
            is_wide = adds and types_of(array.dtype).is_mixed
            sums = types_of(array.dtype).sums if is_wide else None
            how = operation, algorithm, group, array.size, array.dtype, Kind.APPLY
            log.note(self.axis, Exchange("", *how, edges=edges, sums=sums), started)
        return COMPLETED

    def _given(self, parts: Parts) -> tuple[int, ...]:
        return () if parts is None else tuple(accumulate(parts, initial=0))

    def _edges(self, n: int, parts: Parts) -> tuple[int, ...]:
        chunks = range(self.size + 1)
        return self._given(parts) or tuple(chunk_start(n, self.size, r) for r in chunks)


class PaperBuffer:
    """Stands in a simulated step for a SharedBuffer or NodeMemory (memory that the ranks of a node
    share), without data."""

    def __init__(self, comm: PaperComm, n: int, dtype: Any) -> None:
        self._comm, self._node = comm, comm.node()
        self.mine, self.total, self.array = (META.xp.empty(n, dtype) for _ in range(3))

    def start(self, start: int, stop: int) -> CompletedWork:
        """Logs the sum over ranks of elements `start` to `stop` - 1 of this buffer."""
        return self._comm._note(
            Collective.ALL_REDUCE, "shared", self.mine[start:stop], started=True
        )

    def own(self, start: int, stop: int, r: int) -> slice:
        """Returns the slice of elements `start` to `stop` - 1 that rank r of the node adds up."""
        n, p = stop - start, len(self._node)
        return slice(start + chunk_start(n, p, r), start + chunk_start(n, p, r + 1))

    def barrier(self) -> None:
        """Returns at once, since a simulated rank has no others to wait for."""

    def free(self, check: bool = True) -> None:
        """Does nothing, since no memory is shared."""


def rank_state(a: Arrangement, rank: int) -> RankState:
    """Returns the RankState (log and memory) that the PaperComms of a simulated rank share, with an
    empty log."""
    narrow = a.is_mixed and a.sums_dtype is None
    return RankState(rank, a.cluster, narrow, a.sums_by, StepLog())


def layout_on_paper(a: Arrangement, state: RankState) -> Layout:
    """Returns the Layout (the communicators along each axis of the mesh) of a simulated rank: they
    are PaperComms, which log exchanges and send nothing."""
    mesh, rank = a.mesh, state.rank

    def group(name: str, *axes: str) -> Any:
        return PaperComm(mesh.group(rank, *axes) if rank < mesh.size else (rank,), name, state)

    axis = {row.name: group(row.name, row.name) for row in AXES}
    batch, replicas = (
        axis["dp"] if "dp" in axes and mesh.count(*axes) == mesh.count("dp") else group("dp", *axes)
        for axes in (BATCH, summed_axes(a.config))
    )
    everyone: Any = PaperComm(range(a.ranks), "all", state)
    alone: Any = PaperComm((rank,), "all", state)
    return Layout(
        *(mesh, a.servers, everyone, axis, batch, replicas, group("model", *MODEL), alone),
        state.narrow,
    )
