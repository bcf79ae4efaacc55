"""The channel of watchdogs in a fault-tolerant job, on a communicator that nobody revokes."""

import os
from collections.abc import Callable, Sequence
from contextlib import suppress

from nnmpi.addons.recovery.ulfm.family import failed_ranks
from nnmpi.addons.recovery.ulfm.files import node_number
from nnmpi.addons.recovery.ulfm.transport import UlfmTransport
from nnmpi.comm.transport.mpi_job import MPIChannel
from nnmpi.comm.transport.start_mpi import MPI

ENDED = b"e"  # the message of a rank that has reached its end


class UlfmChannel(MPIChannel):
    """A channel for watchdogs' messages between ranks some of which may be lost."""

    def __init__(self, transport: UlfmTransport) -> None:
        """Creates the channel of all ranks of `transport`, the first transport that they have made
        since a rank was lost, or since the start; the caller then calls `confirm`."""
        super().__init__(transport.family.communicator())
        self._gone: set[int] = set()
        self._ended: set[int] = set()
        rows = transport.gather([node_number(), os.getpid()]).tolist()
        self.processes = {r: (n, p) for r, (n, p) in zip(transport.members, rows, strict=True)}
        """Each rank's node and process id."""

    def left(self) -> Sequence[int]:
        return [r for r in self.peers if r not in self._gone]

    def send(self, message: bytes, to: int) -> None:
        with suppress(MPI.Exception):  # the rank is lost, which `receive` will notice
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
        """Tells the other ranks that this rank is at its end; returns a function that returns True
        once each other rank is at its end or lost."""
        for r in self.left():
            self.send(ENDED, r)
        return lambda: self._ended | self._gone >= {*self.peers}
