"""NCCL: sums and gathers between GPUs, where every rank has one of its own (--allreduce nccl).

    replicas  one communicator ─┐
    axis tp   one communicator ─┴─ one stream of a rank: calls in one order on all ranks

Ranks along an axis make the same calls in the order of their program, so none waits for a call that
another rank has put behind one that waits for this rank. Messages, and gathers that a rank starts
when it finds the time, go through memory of the host as without NCCL.
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise

from nnmpi import device
from nnmpi.backend import Array, Backend
from nnmpi.comm import Comm, Parts
from nnmpi.device import SideStream
from nnmpi.parallel.agreement import gather_objects
from nnmpi.parallel.layout import Layout
from nnmpi.parallel.wire import WIRE, StagedComm, one_row

NCCL = "nccl"
"""The name of the all-reduce."""


def connect(layout: Layout, on: Backend, algorithm: str) -> None:
    """Makes NCCL the wire of each axis if gradients are summed by it; every rank calls it."""
    if algorithm != NCCL:
        return
    if layout.replicas.fault_tolerant:
        raise ValueError(
            "allreduce nccl: under mpirun --with-ft ulfm a sum of NCCL waits for ever where a rank "
            "is lost: use --allreduce ring, or mpirun without --with-ft ulfm"
        )
    stream = SideStream(on)
    for comm in (layout.replicas, layout.axis["tp"]):
        if comm.size > 1:
            comm.attributes[WIRE] = NcclComm(comm, on, stream)


class Launched:
    """Calls that are on the stream."""

    def __init__(self, comm: Comm, stream: SideStream) -> None:
        self._comm, self._stream, self._event = comm, stream, stream.event()

    @property
    def done(self) -> bool:
        """Whether they are complete."""
        return self._event.done

    def poll(self) -> bool:
        """Whether they are complete; never blocks."""
        self._comm.poll()
        return self._event.done

    def wait(self) -> None:
        """Returns when they are complete; meanwhile messages of this rank move."""
        while not self.poll():
            time.sleep(0)  # lets other threads use this core
        self._stream.lead(self._event)


class NcclComm(StagedComm):
    """The wire of an axis: its collectives are NCCL's, whatever algorithm is named."""

    def __init__(self, comm: Comm, on: Backend, stream: SideStream) -> None:
        super().__init__(comm, on)
        self._nccl = device.nccl(on)
        # one rank asks: behind each id a thread listens until all ranks have come to it
        uid = gather_objects(comm, self._nccl.get_unique_id() if comm.rank == 0 else None)[0]
        self._calls = self._nccl.NcclCommunicator(comm.size, uid, comm.rank)
        self._stream = stream

    # ---- what is in order on the device: nobody waits

    def all_reduce(self, array: Array, algorithm: str = NCCL) -> None:
        row = self._xp.ascontiguousarray(array).reshape(-1)
        self.start(row)
        self._stream.lead()
        self._put_back(row, array)

    def all_gather(self, array: Array, algorithm: str = NCCL, parts: Parts = None) -> None:
        row = self._xp.ascontiguousarray(array).reshape(-1)
        self.start_all_gather(row, parts=parts)
        self._stream.lead()
        self._put_back(row, array)

    # ---- what is started

    def start(self, array: Array, algorithm: str = NCCL) -> Launched:
        row = one_row(array, "start")
        with self._call(row) as (dtype, stream):
            place = row.data.ptr
            self._calls.allReduce(place, place, row.size, dtype, self._nccl.NCCL_SUM, stream)
        return Launched(self._comm, self._stream)

    def start_reduce_scatter(
        self, array: Array, algorithm: str = NCCL, parts: Parts = None
    ) -> Launched:
        row = one_row(array, "start_reduce_scatter")
        places = self._places(row, parts)
        with self._call(row) as (dtype, stream):
            add = self._nccl.NCCL_SUM
            if own := self._equal(places):
                self._calls.reduceScatter(row.data.ptr, *own, dtype, add, stream)
            for root, (place, n) in enumerate(() if own else places):
                self._calls.reduce(place, place, n, dtype, add, root, stream)
        return Launched(self._comm, self._stream)

    def start_all_gather(
        self, array: Array, algorithm: str = NCCL, parts: Parts = None
    ) -> Launched:
        row = one_row(array, "start_all_gather")
        places = self._places(row, parts)
        with self._call(row) as (dtype, stream):
            if own := self._equal(places):
                place, n = own
                self._calls.allGather(place, row.data.ptr, n, dtype, stream)
            for root, (place, n) in enumerate(() if own else places):
                self._calls.broadcast(place, place, n, dtype, root, stream)
        return Launched(self._comm, self._stream)

    @contextmanager
    def _call(self, row: Array) -> Iterator[tuple[int, int]]:
        """A group of calls, which NCCL carries out together: their type and their stream."""
        self._stream.follow()
        self._nccl.groupStart()
        try:
            yield getattr(self._nccl, f"NCCL_{row.dtype.name.upper()}"), self._stream.pointer
        finally:
            self._nccl.groupEnd()

    def _places(self, row: Array, parts: Parts) -> list[tuple[int, int]]:
        """The address and the length of each rank's part."""
        ends = pairwise(self._ends(parts, row.size))
        return [(row.data.ptr + lo * row.itemsize, hi - lo) for lo, hi in ends]

    def _equal(self, places: list[tuple[int, int]]) -> tuple[int, int] | None:
        """This rank's part where all have one length, as NCCL's own collectives of parts need."""
        return places[self._comm.rank] if len({n for _, n in places}) == 1 else None
