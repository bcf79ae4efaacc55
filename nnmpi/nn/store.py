"""FlatStore: all parameters in one buffer, all gradients in another of the same layout."""

from collections.abc import Iterator, Sequence
from typing import Any

from nnmpi import backend
from nnmpi.backend import Array, Backend
from nnmpi.nn.parameter import Parameter, inverse

ALIGN = 16
"""Parameters start at multiples of this many numbers: a cache line of float32."""


class FlatStore:
    """Two flat buffers, `flat` and `flat_grad`; every parameter is a view of both.

    Parameter i lies at `spans[i]`, padding included; padding is zero in both buffers and stays
    so. Subclasses may put a `head` of some numbers before the first parameter, and pass the
    `memory` of the two buffers.
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
            self._take_in(i, p, dtype, on)

    def value(self, i: int) -> Array:
        """The values of parameter i."""
        return self.values[i]

    def slot(self, i: int) -> Array:
        """The memory of the gradient of parameter i."""
        return self.slots[i]

    def owned(self, start: int, end: int) -> Iterator[tuple[Array, Array]]:
        """(values, gradients) of the parts of `flat[start:end]` that this rank's optimizer moves:
        here, all of it."""
        yield self.flat[start:end], self.flat_grad[start:end]

    def gradient_bytes(self) -> int:
        """Memory of gradients; what ranks of a node share counts on the first of them."""
        return sum(slot.nbytes for slot in self.slots)

    def views(self, flat: Array) -> list[Array]:
        """Every parameter's part of a buffer that is laid out as `flat` is."""
        starts = (start for start, _ in self.spans)
        pairs = zip(self.parameters, starts, strict=True)
        return [self._view(flat, p, start) for p, start in pairs]

    @staticmethod
    def _view(flat: Array, p: Parameter, start: int) -> Array:
        """A view of p's logical shape; the buffer holds it in p's memory order."""
        memory = flat[start : start + p.size].reshape([p.shape[k] for k in p.layout])
        return memory.transpose(inverse(p.layout))

    def _take_in(self, i: int, p: Parameter, dtype: Any, on: Backend) -> None:
        if not p.is_drawn:
            p.draw(dtype, on)
        grad = p.grad
        self.values[i][...] = on.asarray(p.data)
        if grad is not None:
            self.slots[i][...] = on.asarray(grad)
        p.move(self, i)


def spans(parameters: Sequence[Parameter], head: int = 0) -> list[tuple[int, int]]:
    """Where each parameter starts and ends, one behind the other after a head."""
    found, end = [], _padded(head)
    for p in parameters:
        start, end = end, end + _padded(p.size)
        found.append((start, end))
    return found


def length(parameters: Sequence[Parameter], head: int = 0) -> int:
    """The length of a flat buffer of these parameters."""
    return max((end for _, end in spans(parameters, head)), default=_padded(head))


def _padded(n: int) -> int:
    return -(-n // ALIGN) * ALIGN


def flatten(parameters: Sequence[Parameter]) -> None:
    """Move parameters that are in no flat store yet into one, of their type and on their device."""
    dtypes = {str(p.data.dtype) for p in parameters}
    if len(dtypes) > 1:
        raise ValueError(
            f"parameters of different types ({', '.join(sorted(dtypes))}) in one optimizer: "
            "give each type an optimizer of its own, or use model.to(dtype=...)"
        )
    loose = [p for p in parameters if not isinstance(p.store, FlatStore)]
    if loose:
        FlatStore(loose, dtypes.pop(), backend.of(loose[0].data))
