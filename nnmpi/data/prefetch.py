"""Computes the next items in a background thread while the current one is in use."""

from collections import deque
from collections.abc import Generator, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from typing import Any, TypeVar

T = TypeVar("T")


def prefetch(items: Iterable[T], depth: int) -> Generator[T, None, None]:
    """Yield the items, of which a thread computes up to `depth` in advance.

    An error in the thread is raised here, after the items computed before it. When the consumer
    stops early, by `break` or by an error, the thread finishes the item in progress and is joined.
    """
    iterator, end, context = iter(items), object(), copy_context()

    def compute() -> Any:
        return next(iterator, end)

    pool = ThreadPoolExecutor(1, "nnmpi-prefetch")
    try:
        pending = deque(pool.submit(context.run, compute) for _ in range(depth))
        while (item := pending.popleft().result()) is not end:
            pending.append(pool.submit(context.run, compute))
            yield item
    finally:
        pool.shutdown(cancel_futures=True)
