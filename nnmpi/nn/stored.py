"""How files have the tensors of a model: names and the order of numbers, as values.

file  ── found: names ──► paths here     order.here(array) ──►  model
      ◄── name ────────  path here       order.there(array)
"""

from collections.abc import Iterable
from typing import NamedTuple

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


AS_IS = Order()


class Form:
    """Names of tensors in a kind of file, and their order there; by default those of a model."""

    def found(self, names: Iterable[str]) -> dict[str, str]:
        """The names in a file by the paths here; those of no tensor of the model are left out."""
        return {name: name for name in names}

    def tied(self, names: Iterable[str]) -> list[tuple[str, str]]:
        """Pairs of names in a file that are one tensor of the model, so both have to be equal."""
        return []

    def name(self, path: str) -> str | None:
        """The name in a file that is written; None for what it does not have."""
        return path

    def order(self, path: str) -> Order:
        """How a file has the numbers of a tensor."""
        return AS_IS


PLAIN = Form()


def _swapped(outputs: np.ndarray, a: int, b: int) -> np.ndarray:
    """Rows in the order (b, a, rest), of rows in the order (a, b, rest)."""
    if len(outputs) % (a * b):
        raise ValueError(f"{len(outputs)} rows are not {a} x {b} equal parts")
    parts = outputs.reshape(a, b, -1, *outputs.shape[1:])
    return parts.swapaxes(0, 1).reshape(outputs.shape)
