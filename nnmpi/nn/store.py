"""FlatStore: all parameters in one buffer, all gradients in another of the same layout."""

from collections.abc import Sequence
from typing import Any

from nnmpi import backend
from nnmpi.backend import Array, Backend
from nnmpi.nn.parameter import Parameter, inverse

ALIGN = 16
"""Parameters start at multiples of this many numbers: a cache line of float32."""


class FlatStore:
    """Two flat buffers, `flat` and `flat_grad`; every parameter is a view of both.

    `spans[i]` is where parameter i lies, its padding included; what lies
    between parameters is zero in both buffers and stays so.
    """

    def __init__(self, parameters: Sequence[Parameter], dtype: Any, on: Backend) -> None:
        self.parameters = tuple(parameters)
        self.spans: list[tuple[int, int]] = []
        end = 0
        for p in self.parameters:
            start, end = end, end + -(-p.size // ALIGN) * ALIGN
            self.spans.append((start, end))
        self.flat = on.xp.zeros(end, dtype)
        self.flat_grad = on.xp.zeros(end, dtype)
        self.values: list[Array] = []
        self.slots: list[Array] = []
        for p, (start, _) in zip(self.parameters, self.spans, strict=True):
            self.values.append(self._view(self.flat, p, start))
            self.slots.append(self._view(self.flat_grad, p, start))
        for i, p in enumerate(self.parameters):
            self._take_in(i, p, dtype, on)

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
