"""LocalStore: parameters and gradients of one rank, and what the stores of several have in common.

                     flat                    flat_grad
LocalStore           a copy on each rank     this rank's; the sums over dp replace it
NodeStore            one memory for a node   this rank's segment; the sums are in one memory for a
                                             node, and each rank updates the part that it summed
SliceStore           a copy on each rank     a stack of buffers, one for each partial sum of slices
stores of zero/      a copy on each rank,    this rank's, or the shards that it updates
                     or its shards

In front of the gradients are scalars that are summed together with them, and so cost no message:

    flat_grad   [ loss | stop | used 0 | used 1 | ... | gradients ... ]

`used i` counts the ranks on which parameter i got a gradient.
"""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import numpy as np

from nnmpi import backend
from nnmpi.backend import Array, Backend
from nnmpi.nn.parameter import Parameter
from nnmpi.nn.store import FlatStore

LOSS, STOP, USED = 0, 1, 2
"""Where the scalars are."""

BLOCK = 8192  # numbers; OpenBLAS takes several threads for a dot product of more than 10,000

Stretch = tuple[int, int]
"""(start, stop) in a flat buffer."""


def scalar_count(parameters: Sequence[object]) -> int:
    """How many scalars there are: the loss, the request to stop, and one number a parameter."""
    return USED + len(parameters)


class LocalStore(FlatStore):
    """A whole copy on this rank; `scalars` of its gradient buffer are summed with the gradients."""

    def __init__(
        self, parameters: Sequence[Parameter], dtype: Any, on: Backend, scalars: int = 0
    ) -> None:
        self._scalars = scalars
        super().__init__(parameters, dtype, on, scalars)

    @property
    def scalars(self) -> Array:
        """Loss, stop flag and uses: of this rank, or, after a sum, of all ranks of dp."""
        return self.flat_grad[: self._scalars]

    def begin(self) -> None:
        """Starts a step: no parameter has a gradient."""
        for p in self.parameters:
            p.grad = None

    def note_used(self) -> None:
        """Writes into the scalars which parameters have a gradient."""
        scalars = self.scalars
        flags = np.array([p.has_grad for p in self.parameters], scalars.dtype)
        scalars[USED:] = backend.of(scalars).asarray(flags)

    def show_sums(self) -> None:
        """All sums are complete: from here on `flat_grad` holds them."""

    def totals(self, counted: Sequence[Stretch]) -> Array:
        """The scalars summed over dp, and behind them the sum of the squares of the gradients in
        the stretches that this rank counts."""
        xp = backend.xp_of(self.flat_grad)
        squares = xp.asarray(self.squares(counted)).reshape(1)
        return xp.concatenate((self.scalars, squares))

    def squares(self, counted: Sequence[Stretch]) -> Array:
        """The sum of the squares of the summed gradients there; the same bits on every rank."""
        return sum(squares(g) for lo, hi in counted for *_, g in self.owned(lo, hi))

    def whole_gradient(self, i: int) -> Array:
        """The summed gradient of parameter i after a step; every rank of dp calls it."""
        return self.slots[i]

    def settle(self) -> None:
        """Returns when every rank has updated the parameters that it owns."""

    def close(self) -> None:
        """Frees shared memory; parameters move to memory of this rank. Every rank calls it."""


def fill_unused(parameters: Iterable[Parameter]) -> None:
    """Writes zeros where there is no gradient."""
    for p in parameters:
        if not p.has_grad:
            p.slot[...] = 0


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
