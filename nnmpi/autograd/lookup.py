"""Lookup: rows of a table that still know their numbers, so that a layer can use them."""

from __future__ import annotations

from typing import Any

from nnmpi.arrays.backend import Array
from nnmpi.arrays.kernels import Vjp
from nnmpi.autograd.ops.lookup import whole
from nnmpi.autograd.tensor import Tensor


class Lookup(Tensor):
    """The result of an embedding: rows of the last axis with the same integer in `index` are equal.

    It is a tensor like others, and every op makes another one of it. The index is None as soon as
    anybody else has its memory, and may write there.
    """

    __slots__ = ("index",)

    def __init__(self, y: Tensor, index: Array) -> None:
        super().__init__(y.operand)
        self.requires_grad, self.node = y.requires_grad, y.node
        self.index: Array | None = index

    @property
    def data(self) -> Array:
        """The array."""
        self.index = None
        return self.operand

    @data.setter
    def data(self, value: Array) -> None:
        self.index, self.operand = None, value

    def lend(self, view: Tensor) -> None:
        self.index = None
        super().lend(view)

    def mark_written(self) -> None:
        self.index = None
        super().mark_written()

    def receive(self, vjp: Vjp, g: Any) -> None:
        super().receive(lambda given, out: whole(vjp(given, out)), g)


Lookup.__name__ = Tensor.__name__  # as messages to users call it
