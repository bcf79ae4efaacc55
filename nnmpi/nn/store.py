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

    `spans[i]` is where parameter i lies, its padding included; what lies
    between parameters is zero in both buffers and stays so. A store that others
    build on may have a `head` of some numbers before the first parameter, and
    may say where the two buffers are.
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

    def owned(self, start: int, end: int) -> Iterator[tuple[int, int]]:
        """The parts of a stretch of `flat` that this rank's optimizer moves: here, all of it."""
        yield start, end

    def gradient_bytes(self) -> int:
        """What gradients take here; what ranks have in common counts on the first of its node."""
        return sum(slot.nbytes for slot in self.slots)

    def views(self, flat: Array) -> list[Array]:
        """Every parameter's part of a buffer that is laid out as `flat` is."""
        starts = (start for start, _ in self.spans)
        pairs = zip(self.parameters, starts, strict=True)
        return [self._view(flat, p, start) for p, start in pairs]

    @staticmethod
    def _view(flat: Array, p: Parameter, start: int) -> Array:
        """p's logical shape over its memory order within the buffer."""
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
    """Where each parameter starts and ends if they lie one behind the other after a head."""
    found, end = [], _padded(head)
    for p in parameters:
        start, end = end, end + _padded(p.size)
        found.append((start, end))
    return found


def length(parameters: Sequence[Parameter], head: int = 0) -> int:
    """How many numbers a flat buffer has."""
    return max((end for _, end in spans(parameters, head)), default=_padded(head))


def _padded(n: int) -> int:
    return -(-n // ALIGN) * ALIGN


def flatten(parameters: Sequence[Parameter]) -> None:
    """Move parameters that are in no flat store yet into one; they keep their type and device."""
    dtypes = {str(p.data.dtype) for p in parameters}
    if len(dtypes) > 1:
        raise ValueError(
            f"parameters of different types ({', '.join(sorted(dtypes))}) in one optimizer: "
            "give each type an optimizer of its own, or use model.to(dtype=...)"
        )
    loose = [p for p in parameters if not isinstance(p.store, FlatStore)]
    if loose:
        FlatStore(loose, dtypes.pop(), backend.of(loose[0].data))
