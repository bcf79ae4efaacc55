"""How files have the tensors of a model: names and the order of numbers, as values.

file  ── found: names ──► paths here     order.here(array) ──►  model
      ◄── name ────────  path here       order.there(array)
"""

from collections.abc import Iterable
from typing import NamedTuple, Protocol

import numpy as np


class Order(NamedTuple):
    """How a file has the numbers of a tensor, whose first axis are outputs in a model.

    is_transposed   outputs are its last axis there
    heads           outputs there are q of all heads, then k, then v; here q, k, v of each head
    """

    is_transposed: bool = False
    heads: int = 0

    def here(self, array: np.ndarray) -> np.ndarray:
        """The whole tensor as a model has it; a view where it can be."""
        array = array.T if self.is_transposed else array
        return _swapped(array, 3, self.heads) if self.heads else array

    def there(self, array: np.ndarray) -> np.ndarray:
        """The inverse of `here`, in C order."""
        array = _swapped(array, self.heads, 3) if self.heads else array
        return np.ascontiguousarray(array.T if self.is_transposed else array)

    def shape(self, there: tuple[int, ...]) -> tuple[int, ...]:
        """The shape here of a tensor of this shape there."""
        return there[::-1] if self.is_transposed else there


class Form(Protocol):
    """What a kind of file calls tensors, and how it has each."""

    def found(self, names: Iterable[str]) -> dict[str, str]:
        """The names in a file by the paths here; those of no tensor of the model are left out."""

    def tied(self, names: Iterable[str]) -> list[tuple[str, str]]:
        """Pairs of names in a file that are one tensor of the model, so both have to be equal."""

    def name(self, path: str) -> str | None:
        """The name in a file that is written; None for what it does not have."""

    def order(self, path: str) -> Order:
        """How a file has the numbers of a tensor."""


AS_IS = Order()


class Plain:
    """A file with the names and the order of the model."""

    def found(self, names: Iterable[str]) -> dict[str, str]:
        """The same names."""
        return {name: name for name in names}

    def tied(self, names: Iterable[str]) -> list[tuple[str, str]]:
        """None: a file has each tensor under its own name."""
        return []

    def name(self, path: str) -> str | None:
        """The same name."""
        return path

    def order(self, path: str) -> Order:
        """The same order."""
        return AS_IS


PLAIN = Plain()


def _swapped(outputs: np.ndarray, a: int, b: int) -> np.ndarray:
    """Rows in the order (b, a, rest), of rows in the order (a, b, rest)."""
    if len(outputs) % (a * b):
        raise ValueError(f"{len(outputs)} rows are not {a} x {b} equal parts")
    parts = outputs.reshape(a, b, -1, *outputs.shape[1:])
    return parts.swapaxes(0, 1).reshape(outputs.shape)
