"""FlatStore: all parameters in one flat buffer, all gradients in another of the same layout."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from nnmpi import backend
from nnmpi.backend import Array, Backend
from nnmpi.nn.parameter import Parameter, inverse

ALIGN = 16
"""Each parameter starts at a multiple of this many elements: a cache line of float32."""


class FlatStore:
    """Two flat buffers, `flat` and `flat_grad`; each parameter is a view into both.

    Parameter i is at `spans[i]`, including its padding, which is always zero. Subclasses may
    reserve a `head` of some elements before the first parameter, provide the `memory` of the two
    buffers, or keep only some stretches of them: then they call `lay_out` and `move_in`.
    """

    rotates = False

    def __init__(
        self,
        parameters: Sequence[Parameter],
        dtype: Any,
        on: Backend,
        head: int = 0,
        memory: tuple[Array, Array] | None = None,
    ) -> None:
        self.lay_out(parameters, dtype, on, head)
        n = length(self.parameters, head)
        self.flat, self.flat_grad = memory or (on.xp.zeros(n, dtype), on.xp.zeros(n, dtype))
        self.values = self.views(self.flat)
        self.slots = self.views(self.flat_grad)
        self.move_in()

    def lay_out(self, parameters: Sequence[Parameter], dtype: Any, on: Backend, head: int) -> None:
        """Decides where each parameter is in a flat buffer."""
        self.parameters, self.dtype, self.on = tuple(parameters), np.dtype(dtype), on
        self.head, self.spans = head, spans(self.parameters, head)

    def move_in(self) -> None:
        """The parameters leave their stores for this one."""
        for i, p in enumerate(self.parameters):
            if not p.is_drawn:
                p.draw(self.dtype, self.on)
            self.take(i, p)
            p.move(self, i)

    def take(self, i: int, p: Parameter) -> None:
        """Copies the values of p and its gradient, if any, from the store that it is in."""
        self.values[i][...] = self.on.asarray(p.data)
        if p.grad is not None:
            self.slots[i][...] = self.on.asarray(p.grad)

    def drop_gradients(self) -> None:
        """Gives back the memory of gradients, before all parameters move to another store."""
        for p in self.parameters:
            p.grad = None
        self.flat_grad, self.slots = self.on.xp.zeros(0, self.dtype), []

    def value(self, i: int) -> Array:
        """The values of parameter i."""
        return self.values[i]

    def slot(self, i: int) -> Array:
        """The memory of the gradient of parameter i."""
        return self.slots[i]

    def owned(self, start: int, end: int) -> Iterator[tuple[Array, Array]]:
        """(values, gradients) of the parts of `flat[start:end]` that this rank's optimizer updates.

        Here that is all of it.
        """
        yield self.flat[start:end], self.flat_grad[start:end]

    def own_stretches(self, start: int, end: int) -> Iterator[tuple[int, int]]:
        """(start, stop) of each pair that `owned` yields."""
        yield start, end

    def refresh(self, i: int, made: int) -> None:
        """The values of parameter i are in their place at all times."""

    def written(self, i: int) -> None:
        """What was written there is in place."""

    def parameter_bytes(self) -> int:
        """The memory of values; memory that a node shares counts on its first rank only."""
        return sum(value.nbytes for value in self.values)

    def gradient_bytes(self) -> int:
        """The memory of gradients; memory that a node shares counts on its first rank only."""
        return sum(slot.nbytes for slot in self.slots)

    def slot_bytes(self) -> int:
        """The memory in which values or gradients are for a while only."""
        return 0

    def views(self, flat: Array) -> list[Array]:
        """A view for each parameter into a buffer with the layout of `flat`."""
        starts = (start for start, _ in self.spans)
        pairs = zip(self.parameters, starts, strict=True)
        return [self.view(flat, p, start) for p, start in pairs]

    @staticmethod
    def view(flat: Array, p: Parameter, start: int) -> Array:
        """A view of the shape of p; the order of the axes in memory is `p.layout`."""
        memory = flat[start : start + p.size].reshape([p.shape[k] for k in p.layout])
        return memory.transpose(inverse(p.layout))


def spans(parameters: Sequence[Parameter], head: int = 0) -> list[tuple[int, int]]:
    """(start, end) of each parameter: one after the other, behind the head."""
    return spans_of([p.room for p in parameters], head)


def spans_of(rooms: Iterable[int], head: int = 0) -> list[tuple[int, int]]:
    """(start, end) of stretches with room for so many elements each."""
    found, end = [], _padded(head)
    for room in rooms:
        start, end = end, end + _padded(room)
        found.append((start, end))
    return found


def length(parameters: Sequence[Parameter], head: int = 0) -> int:
    """The length of a flat buffer with these parameters."""
    return max((end for _, end in spans(parameters, head)), default=_padded(head))


def _padded(n: int) -> int:
    return -(-n // ALIGN) * ALIGN


def flatten(parameters: Sequence[Parameter]) -> None:
    """Move parameters that are not in a flat store into one, of their type and on their device."""
    dtypes = {str(p.dtype) for p in parameters}
    if len(dtypes) > 1:
        raise ValueError(
            f"parameters of different types ({', '.join(sorted(dtypes))}) in one optimizer: "
            "give each type an optimizer of its own, or use model.to(dtype=...)"
        )
    loose = [p for p in parameters if not isinstance(p.store, FlatStore)]
    if loose:
        FlatStore(loose, dtypes.pop(), backend.of(loose[0].data))
