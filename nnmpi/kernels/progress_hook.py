"""A function that long computations call now and then, so that messages progress meanwhile.

MPI moves no messages while a rank computes. Whoever has some in flight sets `progress_hook`. It is
called between the layers of a Sequential, and in backward passes between nodes and between the
chunks of a kernel: every few milliseconds.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar


def _nothing() -> None:
    """No message is in flight."""


progress_hook: ContextVar[Callable[[], object]] = ContextVar(
    "nnmpi_progress_hook", default=_nothing
)
"""What to call between chunks of work. A context variable, since ranks may be threads."""


@contextmanager
def set_progress_hook(f: Callable[[], object]) -> Iterator[None]:
    """Within it, computations call f between chunks of work."""
    token = progress_hook.set(f)
    try:
        yield
    finally:
        progress_hook.reset(token)
