"""Steps: an operation of a communicator as a generator of the requests that it waits for."""

from collections.abc import Iterator
from typing import Protocol, TypeAlias

from nnmpi.comm.transport.base import Request

Steps: TypeAlias = Iterator[list[Request] | None]

NOT_YET = None
"""Yielded in place of requests while another operation of this rank has to complete first."""


class DeviceCopies(Protocol):
    """The copies between an array on a device and the host array of an operation; called by
    whichever thread moves operations, which may be a helper thread."""

    def ready(self) -> bool:
        """True once the device's data are in the host array; each poll asks until then."""

    def complete(self) -> None:
        """Starts the copy of the result to the device; called once, after the operation."""


Copies: TypeAlias = DeviceCopies | None
"""None stands for a host array, which is filled when the work starts."""


def with_copies(steps: Steps, copies: DeviceCopies) -> Steps:
    """Makes an operation on a device's array from `steps` on host memory: waits until `copies` has
    filled the host array, carries it out, then starts the copy of the result to the device."""
    while not copies.ready():
        yield NOT_YET
    yield from steps
    copies.complete()


class OperationQueue:
    """A queue for operations on one resource: each begins when all earlier ones are complete."""

    def __init__(self) -> None:
        self._started = self._completed = 0

    def add(self, steps: Steps) -> Steps:
        """Makes an operation from `steps` that first waits for all that were added before it."""
        number = self._started
        self._started += 1
        while self._completed != number:
            yield NOT_YET
        try:
            yield from steps
        finally:
            self._completed += 1
