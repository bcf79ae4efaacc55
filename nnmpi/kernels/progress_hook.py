"""A pause for others in the middle of long computations.

No MPI moves messages on while a rank computes. So whoever has some under way sets `breath`, and
what computes for long calls it every few milliseconds.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar


def _nothing() -> None:
    """Nobody waits for anything."""


breath: ContextVar[Callable[[], object]] = ContextVar("nnmpi_breath", default=_nothing)
"""What to call between two parts of a backward pass; ranks may be threads, so each has its own."""


@contextmanager
def breathing(f: Callable[[], object]) -> Iterator[None]:
    """Inside, backward passes call f now and then."""
    token = breath.set(f)
    try:
        yield
    finally:
        breath.reset(token)
