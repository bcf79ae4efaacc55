"""Steps: what an operation of a communicator is made of, a generator of what it waits for."""

from collections.abc import Iterator
from typing import Protocol, TypeAlias

from nnmpi.comm.transport.base import Request

Steps: TypeAlias = Iterator[list[Request] | None]

NOT_YET = None
"""In place of requests: another operation of this rank has to be complete first."""


class DeviceCopies(Protocol):
    """The copies to and from a device on both sides of a work.

    Both methods are called by whoever moves works, a helper thread too.
    """

    def ready(self) -> bool:
        """Whether the array is filled, so that the work may begin; asked at each poll."""

    def complete(self) -> None:
        """The result is in the array; called once."""


Copies: TypeAlias = DeviceCopies | None
"""None stands for an array of the host, which is filled when the work starts."""


def with_copies(steps: Steps, copies: DeviceCopies) -> Steps:
    """The steps, which begin when their array is filled, and at whose end the result is taken."""
    while not copies.ready():
        yield NOT_YET
    yield from steps
    copies.complete()


class OperationQueue:
    """Operations that use one resource: each begins when those started before it are complete."""

    def __init__(self) -> None:
        self._started = self._completed = 0

    def add(self, steps: Steps) -> Steps:
        """The steps, behind all that were added before."""
        number = self._started
        self._started += 1
        while self._completed != number:
            yield NOT_YET
        try:
            yield from steps
        finally:
            self._completed += 1
