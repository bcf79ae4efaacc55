"""Exchange: a computation that starts several transfers one after the other, with the interface of
a single Transfer.

The computation is a generator: it yields each transfer, and is resumed when that is complete; a
phase is its part up to the next transfer. Ranks must start the transfers of a Comm in the same
order. Since polls come at different times on each rank, a poll may start the next phase of an
exchange only if no other exchange uses its Comm. Several exchanges start their first phases one
after another, and continue, in the same order, when they are waited for:

    start 0   start 1   start 2   wait 0: its other phases   wait 1: its other phases   ...
"""

from collections.abc import Generator
from typing import TypeAlias

from nnmpi.arrays.backend import Array
from nnmpi.parallel.wire import Transfer

Phases: TypeAlias = Generator[Transfer, None, Array]
"""A generator of phases: yields transfers, is resumed after them, and returns."""


class Exchange:
    """A generator that starts several transfers one after the other, as a single Transfer.

    alone    True if no other exchange is in flight on the Comm, so a poll may start the next phase
    result   the result of the generator, once it has ended
    """

    def __init__(self, phases: Phases, alone: bool = False) -> None:
        self._phases, self._alone = phases, alone
        self._transfer: Transfer | None = None
        self.done = False
        self.result: Array = None
        self._go_on()

    def poll(self) -> bool:
        """Makes progress with messages; True if the exchange is complete."""
        while not self.done and self._current.poll():
            if not self._alone:
                return False
            self._go_on()
        return self.done

    def wait(self) -> None:
        """Waits until the last transfer of the exchange is complete."""
        while not self.done:
            self._current.wait()
            self._go_on()

    @property
    def _current(self) -> Transfer:
        assert self._transfer is not None
        return self._transfer

    def _go_on(self) -> None:
        try:
            self._transfer = next(self._phases)
        except StopIteration as end:
            self.result, self.done = end.value, True
