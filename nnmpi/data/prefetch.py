"""Making the next items in a thread while the present one is being used."""

import sys
from collections.abc import Generator, Iterable
from contextvars import copy_context
from queue import SimpleQueue
from threading import Event, Semaphore, Thread
from typing import NamedTuple, TypeVar

T = TypeVar("T")


class _End(NamedTuple):
    """The last word of the thread: the items are over, by this error if there is one."""

    error: BaseException | None


def ahead(items: Iterable[T], depth: int) -> Generator[T, None, None]:
    """The items, which a thread makes while at most `depth` of them wait to be taken.

    An error in the thread is raised here, behind the items made before it. However
    the consumer stops, by the end, `break` or an error of its own, the thread is told
    and joined: it finishes at most the one item it is making.
    """
    queue: SimpleQueue[T | _End] = SimpleQueue()
    room, stop = Semaphore(depth - 1), Event()
    thread = Thread(
        target=copy_context().run,
        args=(_make, items, queue, room, stop),
        name="nnmpi-prefetch",
        daemon=True,
    )
    thread.start()
    try:
        while not isinstance(item := queue.get(), _End):
            room.release()
            yield item
        if item.error is not None:
            raise item.error
    finally:
        if not sys.is_finalizing():  # when the interpreter ends the thread stands still for ever
            stop.set()
            room.release()
            thread.join()


def _make(items: Iterable[T], queue: SimpleQueue[T | _End], room: Semaphore, stop: Event) -> None:
    """Puts items on the queue, waiting for room behind each, until they end or it is told to."""
    error: BaseException | None = None
    try:
        for item in items:
            queue.put(item)
            room.acquire()
            if stop.is_set():
                break
    except BaseException as caught:  # whatever it is, the consumer must not wait for ever
        error = caught
    queue.put(_End(error))
