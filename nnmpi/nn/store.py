"""FlatStore: all parameters in one flat buffer, all gradients in another of the same layout."""

from collections.abc import Iterator, Sequence
from typing import Any

from nnmpi import backend
from nnmpi.backend import Array, Backend
from nnmpi.nn.parameter import Parameter, inverse

ALIGN = 16
"""Each parameter starts at a multiple of this many elements: a cache line of float32."""


class FlatStore:
    """Two flat buffers, `flat` and `flat_grad`; each parameter is a view into both.

    Parameter i is at `spans[i]`, including its padding, which is always zero. Subclasses may
    reserve a `head` of some elements before the first parameter, and provide the `memory` of the
    two buffers.
    """

    def __init__(
        self,
        parameters: Sequence[Parameter],
        dtype: Any,
        on: Backend,
        head: int = 0,
        memory: tuple[Array, Array] | None = None,
    ) -> None:
        self.parameters = tuple(parameters)
        self.head = head
        self.spans = spans(self.parameters, head)
        n = length(self.parameters, head)
        self.flat, self.flat_grad = memory or (on.xp.zeros(n, dtype), on.xp.zeros(n, dtype))
        self.values = self.views(self.flat)
        self.slots = self.views(self.flat_grad)
        for i, p in enumerate(self.parameters):
            self._move_in(i, p, dtype, on)

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

    def gradient_bytes(self) -> int:
        """The memory of gradients; memory that a node shares counts on its first rank only."""
        return sum(slot.nbytes for slot in self.slots)

    def views(self, flat: Array) -> list[Array]:
        """A view for each parameter into a buffer with the layout of `flat`."""
        starts = (start for start, _ in self.spans)
        pairs = zip(self.parameters, starts, strict=True)
        return [self._view(flat, p, start) for p, start in pairs]

    @staticmethod
    def _view(flat: Array, p: Parameter, start: int) -> Array:
        """A view of the shape of p; the order of the axes in memory is `p.layout`."""
        memory = flat[start : start + p.size].reshape([p.shape[k] for k in p.layout])
        return memory.transpose(inverse(p.layout))

    def _move_in(self, i: int, p: Parameter, dtype: Any, on: Backend) -> None:
        if not p.is_drawn:
            p.draw(dtype, on)
        grad = p.grad
        self.values[i][...] = on.asarray(p.data)
        if grad is not None:
            self.slots[i][...] = on.asarray(grad)
        p.move(self, i)


def spans(parameters: Sequence[Parameter], head: int = 0) -> list[tuple[int, int]]:
    """(start, end) of each parameter: one after the other, behind the head."""
    found, end = [], _padded(head)
    for p in parameters:
        start, end = end, end + _padded(p.size)
        found.append((start, end))
    return found


def length(parameters: Sequence[Parameter], head: int = 0) -> int:
    """The length of a flat buffer with these parameters."""
    return max((end for _, end in spans(parameters, head)), default=_padded(head))


def _padded(n: int) -> int:
    return -(-n // ALIGN) * ALIGN


def flatten(parameters: Sequence[Parameter]) -> None:
    """Move parameters that are not in a flat store into one, of their type and on their device."""
    dtypes = {str(p.data.dtype) for p in parameters}
    if len(dtypes) > 1:
        raise ValueError(
            f"parameters of different types ({', '.join(sorted(dtypes))}) in one optimizer: "
            "give each type an optimizer of its own, or use model.to(dtype=...)"
        )
    loose = [p for p in parameters if not isinstance(p.store, FlatStore)]
    if loose:
        FlatStore(loose, dtypes.pop(), backend.of(loose[0].data))
