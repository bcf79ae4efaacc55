"""What an optimizer on one rank makes of the gradients of a layout.

In float32 two trainings part by rounding, so they cannot be compared for long. An update can, step
by step: from equal parameters and equal gradients one and the same formula gives the same numbers,
whichever rank moves which part of them.
"""

from collections.abc import Iterator

from nnmpi import backend
from nnmpi.backend import Array
from nnmpi.nn.parameter import Parameter
from nnmpi.nn.store import FlatStore
from nnmpi.parallel.strategy import Job


class Update:
    """A copy of the parameters of a layout, moved by an optimizer of its own, with all its sums."""

    def __init__(self, job: Job) -> None:
        self._theirs, self._rate = job.parameters, job.wishes.rate
        self._own = [Parameter(p.data) for p in job.parameters]
        first = self._own[0].data
        FlatStore(self._own, first.dtype, backend.of(first))
        self.optimizer = job.optimizer(self._own)

    def follow(self, step: int, updated: bool) -> Iterator[tuple[Array, Array]]:
        """Pairs to compare after a step of the layout: what it has, and what it should have."""
        for own, p in zip(self._own, self._theirs, strict=True):
            own.grad = p.grad
        if updated:
            self.optimizer.lr = self._rate(step)
            self.optimizer.step()
        for own, p in zip(self._own, self._theirs, strict=True):
            yield p.data, own.data

    def take_over(self) -> None:
        """From here on together again."""
        for own, p in zip(self._own, self._theirs, strict=True):
            own.data = p.data
