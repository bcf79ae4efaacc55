"""Operations as generators: each yields the requests that its next step needs."""

from collections.abc import Callable, Iterator
from typing import TypeAlias

from nnmpi.comm.transport.base import Request

Steps: TypeAlias = Iterator[list[Request] | None]

NOT_YET = None
"""In place of requests: another operation of this rank has to be complete first."""


def then(steps: Steps, f: Callable[[], None]) -> Steps:
    """The steps, and after the last of them a call of f."""
    yield from steps
    f()


class InOrder:
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
