"""Computes the next items in a background thread while the current one is in use."""

import sys
from collections.abc import Generator, Iterable
from contextvars import copy_context
from queue import SimpleQueue
from threading import Event, Semaphore, Thread
from typing import NamedTuple, TypeVar

T = TypeVar("T")


class _End(NamedTuple):
    """The last entry of the queue, with the error that ended the items if there is one."""

    error: BaseException | None


def prefetch(items: Iterable[T], depth: int) -> Generator[T, None, None]:
    """Yield the items, of which a thread computes up to `depth` in advance.

    An error in the thread is raised here, after the items computed before it. When the consumer
    stops early, by `break` or by an error, the thread finishes the item in progress and is joined.
    It is a daemon: the interpreter does not wait for it at exit, as it would for a pool's.
    """
    queue: SimpleQueue[T | _End] = SimpleQueue()
    free, stop = Semaphore(depth - 1), Event()
    thread = Thread(
        target=copy_context().run,
        args=(_compute, items, queue, free, stop),
        name="nnmpi-prefetch",
        daemon=True,
    )
    thread.start()
    try:
        while not isinstance(item := queue.get(), _End):
            free.release()
            yield item
        if item.error is not None:
            raise item.error
    finally:
        if not sys.is_finalizing():  # at exit the thread is suspended for good
            stop.set()
            free.release()
            thread.join()


def _compute(
    items: Iterable[T], queue: SimpleQueue[T | _End], free: Semaphore, stop: Event
) -> None:
    """Put items on the queue, at most as many as are free, until they end or `stop` is set."""
    error: BaseException | None = None
    try:
        for item in items:
            queue.put(item)
            free.acquire()
            if stop.is_set():
                break
    except BaseException as caught:  # of any kind: the consumer must not wait for ever
        error = caught
    queue.put(_End(error))
