"""The messages of watchdogs, of which some may be gone, on a communicator that nobody revokes."""

import os
from collections.abc import Callable, Sequence
from contextlib import suppress

from nnmpi.comm.transport.files import node_number
from nnmpi.comm.transport.mpi_job import MPIChannel
from nnmpi.comm.transport.start_mpi import MPI
from nnmpi.comm.transport.ulfm import UlfmTransport
from nnmpi.comm.transport.ulfm_family import failed_ranks

ENDED = b"e"  # what a rank tells the others when it has nothing left to do


class UlfmChannel(MPIChannel):
    """The messages of watchdogs, of which some may be gone."""

    def __init__(self, transport: UlfmTransport) -> None:
        """`transport` is the first of its family, made just now; to confirm is next."""
        super().__init__(transport.family.communicator())
        self._gone: set[int] = set()
        self._ended: set[int] = set()
        rows = transport.gather([node_number(), os.getpid()]).tolist()
        self.processes = {r: (n, p) for r, (n, p) in zip(transport.members, rows, strict=True)}

    def left(self) -> Sequence[int]:
        return [r for r in self.peers if r not in self._gone]

    def send(self, message: bytes, to: int) -> None:
        with suppress(MPI.Exception):  # it is gone, and `receive` finds that out
            super().send(message, to)

    def receive(self) -> tuple[int, bytes] | None:
        try:
            received = super().receive()
        except MPI.Exception:
            self._gone = failed_ranks(self._comm)
            self._comm.Ack_failed(len(self._gone))
            return None
        if received is None or received[1] != ENDED:
            return received
        self._ended.add(received[0])
        return self.receive()

    def ibarrier(self) -> Callable[[], bool]:
        """Complete when all ranks that are left have called it, each of which tells all others."""
        for r in self.left():
            self.send(ENDED, r)
        return lambda: self._ended | self._gone >= {*self.peers}


def remove_segments() -> None:
    """Removes the files of the memory through which messages go, of lost ranks too.

    MPI does so at its end, to which a fault-tolerant job does not come. Linux only.
    """
    with suppress(OSError), open("/proc/self/maps") as maps:
        paths = {line.split(maxsplit=5)[-1].rstrip() for line in maps if "/sm_segment." in line}
        for path in paths:
            with suppress(OSError):  # another rank has removed it
                os.unlink(path)
