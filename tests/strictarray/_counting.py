"""Counts of what the device does in a block of code, and of what makes the host wait for it."""

from collections.abc import Iterator
from contextlib import contextmanager


class Count:
    """The names of operations, in their order."""

    def __init__(self) -> None:
        self.names: list[str] = []

    @property
    def total(self) -> int:
        return len(self.names)

    def __repr__(self) -> str:
        return f"Count({', '.join(self.names)})"


class Work(Count):
    """Operations of the device, each as "kind name".

    kernel      computes, and whatever is no other kind
    copy        gives numbers another order of memory
    conversion  gives numbers another type; those that CuPy makes by itself in products, too
    transfer    brings an array from the host
    """

    def __getitem__(self, kind: str) -> int:
        return sum(name.startswith(kind) for name in self.names)

    @property
    def launches(self) -> int:
        """All but transfers."""
        return self.total - self["transfer"]


synchronisations = Count()  # all of them since the import
_open = [synchronisations]
_working: list[Work] = []


def note(name: str) -> None:
    """Record that the host waited, in every count that is open.

    A list's append is atomic, so ranks that run as threads lose no entry.
    """
    for count in tuple(_open):
        count.names.append(name)


def launched(kind: str, name: str) -> None:
    """Record an operation of the device."""
    for work in tuple(_working):
        work.names.append(f"{kind} {name}")


@contextmanager
def counting() -> Iterator[Count]:
    """A count of what synchronises inside the `with`, in every thread; it can be read after it."""
    count = Count()
    _open.append(count)
    try:
        yield count
    finally:
        _open[:] = [other for other in _open if other is not count]


@contextmanager
def working() -> Iterator[Work]:
    """What the device does inside the `with`."""
    work = Work()
    _working.append(work)
    try:
        yield work
    finally:
        _working[:] = [other for other in _working if other is not work]
