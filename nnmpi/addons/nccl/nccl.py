"""NCCL: sums and gathers between GPUs, where every rank has one of its own (--allreduce nccl).

    replicas  one communicator ─┐
    axis tp   one communicator ─┴─ one stream of a rank: calls in one order on all ranks
    BatchNorm one communicator ─── a stream of its own: sums of gradients begin when they can

16-bit terms are added up in float32, and the complete sum is rounded, unless sums are to be rounded
after each addition (`Layout.narrow_sums`):

    kernels' stream   row ──┐                                               ┌── kernels that read it
    NCCL's stream           └── float32 copy ── all-reduce ── round to row ─┘

Ranks along an axis make the same calls in the same order, that of their lists, so calls on one
stream cannot wait for each other in a circle. Messages, and gathers that a rank starts whenever it
has time, go through host memory as they do without NCCL.
"""

import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from itertools import pairwise
from typing import Any

from nnmpi.arrays import backend
from nnmpi.arrays.backend import Array, Backend
from nnmpi.arrays.devices import SideStream
from nnmpi.arrays.dtypes import types_of
from nnmpi.arrays.kernels.precision import cast
from nnmpi.comm import Comm, Parts
from nnmpi.parallel.agreement import gather_objects
from nnmpi.parallel.arrangement.cluster import Cluster, LibrarySums
from nnmpi.parallel.layout import Layout
from nnmpi.parallel.wire import WIRE, StagedComm, Wire, one_row, wire_of

NCCL = "nccl"
"""The name of this all-reduce in --allreduce."""


def is_found(on: Backend) -> bool:
    """Returns True if the array library finds NCCL, without its warning."""
    if on.is_host:
        return False
    with warnings.catch_warnings(action="ignore"):
        return bool(import_module(f"{on.xp.__name__}.cuda.nccl").available)


def module(on: Backend) -> Any:
    """Returns the NCCL module of the array library; raises ValueError if there is none."""
    if not is_found(on):
        raise ValueError(
            f"allreduce nccl: {on.xp.__name__} finds no NCCL: install the package "
            "nvidia-nccl-cu12 (or cu13, as CuPy), or use --allreduce ring"
        )
    return import_module(f"{on.xp.__name__}.cuda.nccl")


def _sharing(cluster: Cluster) -> tuple[int, int] | None:
    """Returns two ranks that share one GPU; None if each rank has a GPU of its own."""
    rank_of_gpu: dict[tuple[int, int | None], int] = {}
    for r, gpu in enumerate(zip(cluster.nodes, cluster.devices, strict=True)):
        if rank_of_gpu.setdefault(gpu, r) != r:
            return rank_of_gpu[gpu], r
    return None


def _suits(cluster: Cluster) -> bool:
    """Returns True if `--allreduce auto` may choose NCCL: each rank has its own GPU, and the job
    ends anyway if a rank is lost."""
    return not cluster.survives and _sharing(cluster) is None


def _refuse(cluster: Cluster) -> None:
    """Raises ValueError if two ranks share a GPU."""
    if (pair := _sharing(cluster)) is not None:
        first, second = pair
        per_node = max(Counter(cluster.nodes).values())
        raise ValueError(
            f"allreduce nccl: ranks {first} and {second} share GPU {cluster.devices[first]} of a "
            f"node with {per_node} ranks, and NCCL needs a GPU for each rank: start as many ranks "
            "on a node as it has GPUs, or use --allreduce ring"
        )


def connect(layout: Layout, on: Backend) -> None:
    """Makes NCCL carry out the collectives among replicas and along tp; every rank calls it."""
    if layout.replicas.fault_tolerant:
        raise ValueError(
            "allreduce nccl: under mpirun --with-ft ulfm, a sum by NCCL waits forever if a rank is "
            "lost: use --allreduce ring, or mpirun without --with-ft ulfm"
        )
    stream = SideStream(on)
    for comm in (layout.replicas, layout.axis["tp"]):
        if comm.size > 1:
            comm.attributes[WIRE] = NcclComm(comm, on, stream, layout.narrow_sums)


def wire_beside(comm: Comm, array: Array) -> Wire:
    """Returns what carries out a Comm's collectives by NCCL on a stream of its own, as of
    BatchNorm, which must not wait for those of other Comms that were started before."""
    return wire_of(comm, backend.of(array), NcclComm)


class Launched:
    """A `Transfer` for NCCL calls that have been put on a CUDA stream."""

    def __init__(self, comm: Comm, stream: SideStream) -> None:
        self._comm, self._stream, self._event = comm, stream, stream.event()

    @property
    def done(self) -> bool:
        """True if the device has completed the NCCL calls of this transfer."""
        return bool(self._event.done)

    def poll(self) -> bool:
        """Polls other communication; returns True if this transfer's calls are complete."""
        self._comm.poll()
        return self.done

    def wait(self) -> None:
        """Makes kernels that are launched later wait for the NCCL calls; the host does not wait."""
        self._comm.poll()
        self._stream.lead(self._event)


class NcclComm(StagedComm):
    """Carries out the collectives of a Comm by NCCL, whatever the argument `algorithm`."""

    in_order = True

    def __init__(
        self, comm: Comm, on: Backend, stream: SideStream | None = None, narrow: bool = False
    ) -> None:
        super().__init__(comm, on)
        self._nccl = module(on)
        # only rank 0 asks for an id: NCCL has a thread that listens until all ranks have joined it
        uid = gather_objects(comm, self._nccl.get_unique_id() if comm.rank == 0 else None)[0]
        self._calls = self.library = self._nccl.NcclCommunicator(comm.size, uid, comm.rank)
        self._stream, self._narrow = stream or SideStream(on), narrow

    # ---- in order on the device: the host does not wait

    def all_reduce(self, array: Array, algorithm: str = NCCL) -> None:
        self._in_place(array, lambda row: self.start(row).wait())

    def all_gather(self, array: Array, algorithm: str = NCCL, parts: Parts = None) -> None:
        self._in_place(array, lambda row: self.start_all_gather(row, parts=parts).wait())

    # ---- operations that are started

    def start(self, array: Array, algorithm: str = NCCL) -> Launched:
        row = one_row(array, "start")
        with self._terms(row) as terms, self._call(terms) as (dtype, stream):
            place = terms.data.ptr
            self._calls.allReduce(place, place, row.size, dtype, self._nccl.NCCL_SUM, stream)
        return Launched(self._comm, self._stream)

    def start_reduce_scatter(
        self, array: Array, algorithm: str = NCCL, parts: Parts = None
    ) -> Launched:
        row = one_row(array, "start_reduce_scatter")
        ends = self._ends(parts, row.size)
        part = slice(ends[self.rank], ends[self.rank + 1])
        with self._terms(row, part) as terms, self._call(terms) as (dtype, stream):
            add, places = self._nccl.NCCL_SUM, self._places(terms, ends)
            if equal_part := self._equal(places):  # reduceScatter takes equal parts only
                self._calls.reduceScatter(terms.data.ptr, *equal_part, dtype, add, stream)
            for root, (place, n) in enumerate(() if equal_part else places):
                self._calls.reduce(place, place, n, dtype, add, root, stream)
        return Launched(self._comm, self._stream)

    def start_all_gather(
        self, array: Array, algorithm: str = NCCL, parts: Parts = None
    ) -> Launched:
        row = one_row(array, "start_all_gather")
        places = self._places(row, self._ends(parts, row.size))
        with self._call(row) as (dtype, stream):
            if equal_part := self._equal(places):
                place, n = equal_part
                self._calls.allGather(place, row.data.ptr, n, dtype, stream)
            for root, (place, n) in enumerate(() if equal_part else places):
                self._calls.broadcast(place, place, n, dtype, root, stream)
        return Launched(self._comm, self._stream)

    @contextmanager
    def _terms(self, row: Array, part: slice = slice(None)) -> Iterator[Array]:
        """A context that yields the array that NCCL is to sum: `row`, or a float32 copy of a 16-bit
        row. At its end, the slice `part` of the copy is rounded and written back to the row."""
        if self._narrow or not types_of(row.dtype).is_mixed:
            yield row
            return
        self._stream.follow()
        with self._stream.stream:
            terms = cast(row, "float32")
        yield terms
        with self._stream.stream:
            row[part] = terms[part]

    @contextmanager
    def _call(self, row: Array) -> Iterator[tuple[int, int]]:
        """A context that groups NCCL calls; yields (NCCL dtype of `row`, CUDA stream)."""
        self._stream.follow()
        self._nccl.groupStart()
        try:
            yield getattr(self._nccl, f"NCCL_{row.dtype.name.upper()}"), self._stream.stream.ptr
        finally:
            self._nccl.groupEnd()

    def _places(self, row: Array, ends: Sequence[int]) -> list[tuple[int, int]]:
        """Returns (address, number of elements) of each rank's part of a flat device array."""
        return [(row.data.ptr + lo * row.itemsize, hi - lo) for lo, hi in pairwise(ends)]

    def _equal(self, places: list[tuple[int, int]]) -> tuple[int, int] | None:
        """Returns this rank's place if those of all ranks are equally long, or None."""
        return places[self._comm.rank] if len({n for _, n in places}) == 1 else None


SUMS = LibrarySums(is_found, module, _suits, _refuse, connect, wire_beside)
