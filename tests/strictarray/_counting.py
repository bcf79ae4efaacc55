"""Counts of the operations that made the host wait for the device."""

from collections.abc import Iterator
from contextlib import contextmanager


class Count:
    """The synchronisations of a block of code, by name and in order."""

    def __init__(self) -> None:
        self.names: list[str] = []

    @property
    def total(self) -> int:
        return len(self.names)

    def __repr__(self) -> str:
        return f"Count({', '.join(self.names)})"


synchronisations = Count()  # all of them since the import
_open = [synchronisations]


def note(name: str) -> None:
    """Record that the host waited, in every count that is open.

    A list's append is atomic, so ranks that run as threads lose no entry.
    """
    for count in tuple(_open):
        count.names.append(name)


@contextmanager
def counting() -> Iterator[Count]:
    """A count of what synchronises inside the `with`, in every thread; it can be read after it."""
    count = Count()
    _open.append(count)
    try:
        yield count
    finally:
        _open[:] = [other for other in _open if other is not count]
