"""EmbeddingResult: keeps the looked-up indices for the layer that follows."""

from __future__ import annotations

from typing import Any

from nnmpi.arrays.backend import Array
from nnmpi.arrays.kernels import Vjp
from nnmpi.autograd.ops.lookup import dense
from nnmpi.autograd.tensor import Tensor


class EmbeddingResult(Tensor):
    """The result of an embedding, with the integers that were looked up (`index`): a recurrent
    layer can compute each distinct vector once.

    Any op on it returns a plain tensor. `index` becomes None as soon as other code gets the array,
    since that code could make vectors with equal integers different.
    """

    __slots__ = ("index",)

    def __init__(self, y: Tensor, index: Array) -> None:
        super().__init__(y._array)
        self._requires_grad, self.node = y._requires_grad, y.node
        self.index: Array | None = index

    @property
    def array(self) -> Array:
        """The array; reading it drops the index, since the reader may write to the array."""
        self.index = None
        return self._array

    @array.setter
    def array(self, value: Array) -> None:
        self.index, self._array = None, value

    def share(self, view: Tensor) -> None:
        self.index = None
        super().share(view)

    def mark_written(self) -> None:
        self.index = None
        super().mark_written()

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        super().__setstate__(state)
        self.index = None

    def receive(self, vjp: Vjp, g: Any) -> None:
        super().receive(lambda given, out: dense(vjp(given, out)), g)


EmbeddingResult.__name__ = Tensor.__name__  # messages to users say "Tensor"
