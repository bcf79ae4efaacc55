"""Turns: operations that use one thing one by one, in the order in which they were started."""

from nnmpi.comm.allreduce.interpreter import LATER, Steps


class Turns:
    """Whose turn it is."""

    def __init__(self) -> None:
        self._booked = self._served = 0

    def take(self, steps: Steps) -> Steps:
        """The same steps, when all that were begun before are over."""
        turn = self._booked
        self._booked += 1
        while self._served != turn:
            yield LATER
        try:
            yield from steps
        finally:
            self._served += 1
