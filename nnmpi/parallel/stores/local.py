"""LocalStore: parameters and gradients of one rank, and what the stores of several have in common.

                     flat                    flat_grad
LocalStore           this rank's             this rank's: there is nothing to sum
ReplicaStore         a copy on each rank     this rank's; the sums over dp replace it
NodeStore            one memory for a node   this rank's segment; the sums are in one memory for a
                                             node, and each rank updates the part that it summed
SliceStore           a copy on each rank     a stack of buffers, one for each partial sum of slices
stores of zero/      a copy on each rank,    this rank's, or the part that it updates
                     or its part
"""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import NamedTuple, Protocol

from nnmpi import backend
from nnmpi.backend import Array
from nnmpi.comm import Comm
from nnmpi.nn.parameter import Parameter
from nnmpi.nn.store import FlatStore

BLOCK = 8192  # numbers; OpenBLAS takes several threads for a dot product of more than 10,000

Stretch = tuple[int, int]
"""(start, stop) in a flat buffer."""


class Bucket(NamedTuple):
    """A stretch of gradients that is summed in one operation, over the ranks of `comm`."""

    start: int
    stop: int
    comm: Comm


class Sum(Protocol):
    """A sum that has been started."""

    def poll(self) -> bool: ...
    def wait(self) -> None: ...


class Complete:
    """The sum over one rank."""

    def poll(self) -> bool:
        return True

    def wait(self) -> None:
        pass


class LocalStore(FlatStore):
    """The store of a rank that sums with no other."""

    def begin(self) -> None:
        """Starts a step: no parameter has a gradient."""
        for p in self.parameters:
            p.grad = None

    @property
    def head_values(self) -> Array:
        """Loss, stop flag and uses of this rank, to be summed over dp."""
        return self.flat_grad[: self.head]

    def start(self, bucket: Bucket) -> Sum:
        """Starts the sum of a bucket over its ranks."""
        return Complete()

    def summed(self) -> None:
        """All sums are complete: from here on `flat_grad` holds them."""

    def sums(self, stretches: Sequence[Stretch]) -> Array:
        """The sums over dp: those of the head, and of the squares of the gradients there."""
        xp = backend.xp_of(self.flat_grad)
        squares = xp.asarray(self.squares(stretches)).reshape(1)
        return xp.concatenate((self.head_values, squares))

    def whole_gradient(self, i: int) -> Array:
        """The summed gradient of parameter i after a step; every rank of dp calls it."""
        return self.slots[i]

    def squares(self, stretches: Sequence[Stretch]) -> Array:
        """The sum of the squares of the summed gradients there; the same bits on every rank."""
        return sum(squares(self.flat_grad[lo:hi]) for lo, hi in stretches)

    def settle(self) -> None:
        """Returns when every rank has updated the parameters that it owns."""

    def close(self) -> None:
        """Frees shared memory; parameters move to memory of this rank. Every rank calls it."""


def squares(g: Array) -> Array:
    """The sum of squares, in blocks that are too short for BLAS to share out among threads.

    So ranks with different numbers of threads get the same bits.
    """
    xp = backend.xp_of(g)
    if not backend.of(g).is_host:
        return xp.dot(g, g)
    return xp.array(sum(float(b @ b) for b in (g[i : i + BLOCK] for i in range(0, len(g), BLOCK))))


def stores_of(parameters: Iterable[Parameter]) -> list[FlatStore]:
    """The flat stores that hold these parameters, each once."""
    stores = dict.fromkeys(p.store for p in parameters)
    return [store for store in stores if isinstance(store, FlatStore)]


@contextmanager
def reading(parameters: Iterable[Parameter]) -> Iterator[None]:
    """Within it these parameters are read between steps, by all ranks along dp in one order."""
    with ExitStack() as stack:
        for store in stores_of(parameters):
            stack.enter_context(store.reading())
        yield


def values_of(p: Parameter) -> Array:
    """The values of p between steps; every rank along dp asks for the same ones, in one order."""
    with reading([p]):
        return p.data
