"""Which entries `x[key]` means, and what CuPy would have to do to find them."""

import operator
from typing import Any, NamedTuple

import numpy as np

from strictarray._values import Held, raw, refusal


class Index(NamedTuple):
    """A checked index: what NumPy is to be given, and what CuPy would do with it."""

    key: tuple[Any, ...]
    gathers: bool  # index arrays or masks: the result is no view
    masked: bool

    @staticmethod
    def of(key: Any) -> "Index":
        """The index behind `x[key]`; an ellipsis is added so that one element stays an array."""
        parts = [_index_part(part) for part in (key if isinstance(key, tuple) else (key,))]
        arrays = [part for part in parts if isinstance(part, np.ndarray)]
        if not any(part is Ellipsis for part in parts):
            parts.append(Ellipsis)
        return Index(tuple(parts), bool(arrays), any(part.dtype == bool for part in arrays))

    def refuse_undefined(self, a: np.ndarray, value: np.ndarray) -> None:
        """Raise where `a[key] = value` gives what it gives by chance on a GPU.

        Those are an index that occurs twice (any of the values may win) and a
        contiguous copy onto a part of itself (a memcpy that overlaps).
        """
        if self.gathers and not self.masked and value.size > 1:
            places = np.arange(a.size).reshape(a.shape)[self.key]
            if np.unique(places).size < places.size:
                raise ValueError("an index occurs twice: which value stays is undefined in CuPy")
        if self.gathers:
            return
        target = a[self.key]
        plain = target.dtype == value.dtype and target.shape == value.shape
        plain = plain and target.flags.c_contiguous and value.flags.c_contiguous
        same = target.ctypes.data == value.ctypes.data
        if plain and not same and np.may_share_memory(target, value):
            raise ValueError("source and target overlap: undefined in CuPy; copy the source first")


def _index_part(part: Any) -> Any:
    """One entry of an index for NumPy, or the error that CuPy or the house rule has for it."""
    if part is None or part is Ellipsis or isinstance(part, slice):
        return part
    if isinstance(part, Held):
        return part._a
    if isinstance(part, np.ndarray):
        raise refusal(part)
    if isinstance(part, list):
        chosen = np.asarray(raw(part))
        return chosen if chosen.size else chosen.astype(np.int32)
    if isinstance(part, (bool, np.bool_)):
        raise IndexError("a lone bool is no index here")
    return operator.index(part)
