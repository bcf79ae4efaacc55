"""The Comm of assignments that are not about collectives: messages, and sums by nnmpi."""

from typing import ClassVar

from classroom.channel import Stays
from classroom.messages import Messages
from nnmpi.comm import Comm, Work
from nnmpi.comm.arguments import Array


class Sum(Stays):
    """An all-reduce in progress."""

    methods: ClassVar[tuple[str, ...]] = ("wait",)

    def __init__(self, work: Work, array: Array) -> None:
        self._work, self._array = work, array

    def wait(self) -> Array:
        """Returns the array when it has the sum of all ranks."""
        self._work.wait()
        return self._array


class Collectives(Messages):
    """Messages and collectives, by the ring of nnmpi; each returns the array that it has filled."""

    methods: ClassVar[tuple[str, ...]] = (
        *Messages.methods,
        *("all_reduce", "start", "reduce_scatter", "all_gather", "broadcast"),
    )

    def __init__(self, comm: Comm) -> None:
        super().__init__(comm)
        self._collectives = comm

    def all_reduce(self, array: Array) -> Array:
        """Replaces the array on every rank by its sum over the ranks."""
        self._collectives.all_reduce(array, "ring")
        return array

    def start(self, array: Array) -> Sum:
        """Starts an all-reduce."""
        return Sum(self._collectives.start(array, "ring"), array)

    def reduce_scatter(self, array: Array) -> Array:
        """Replaces this rank's `chunk` by that of the sum; the rest is overwritten."""
        self._collectives.reduce_scatter(array)
        return array

    def all_gather(self, array: Array) -> Array:
        """Fills the array with the chunks of all ranks; each rank brings its own `chunk`."""
        self._collectives.all_gather(array)
        return array

    def broadcast(self, array: Array, root: int = 0) -> Array:
        """Replaces the array on every rank by the array of `root`."""
        self._collectives.broadcast(array, root)
        return array
