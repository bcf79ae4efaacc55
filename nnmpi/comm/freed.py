"""What takes the place of something that was freed."""

from typing import NoReturn


class Freed:
    """Raises on every use.

    MPI would end the process with an error of its own, or without one where memory is gone, and
    ranks that are threads would notice nothing.
    """

    def __init__(self, what: str) -> None:
        self._what = what

    def _refuse(self, *_: object) -> NoReturn:
        raise RuntimeError(f"{self._what} was freed, and cannot be used any more: make a new one")

    __getattr__ = __getitem__ = __setitem__ = __len__ = __array__ = _refuse
