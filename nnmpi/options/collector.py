"""gc_paused: a context without garbage collection."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def gc_paused() -> Iterator[None]:
    """A context in which the garbage collector does not search for cycles. Imports and simulated
    steps create few cycles but many objects, which each search would scan again.

    The setting is global in the process. If ranks are threads, the first one to leave the context
    ends it, which costs the others only time.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:  # otherwise another context around this one ends later
            gc.collect(1)  # moves what is new to the oldest generation, which is scanned last
            gc.enable()
