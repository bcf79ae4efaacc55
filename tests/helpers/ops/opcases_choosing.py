"""Test cases of ops that choose elements along an axis, or replace those at an index."""

from typing import Any

import numpy as np
from helpers.ops.opcases import Case

from nnmpi.autograd.ops import shape


def _elements() -> dict[str, Case]:
    def oracle(t: Any, a: Any, i: Any, axis: int, keepdims: bool) -> Any:
        if keepdims:
            return t.take_along_dim(a, i, axis)
        return t.take_along_dim(a, i.unsqueeze(axis), axis).squeeze(axis)

    cases = {}
    for axis, keepdims in ((1, False), (0, True), (-1, True)):
        index = np.array([2, 0, 1, 2]) if axis else np.array([[1, 0, 3]])
        args = (4, 3), index[:, None] if axis and keepdims else index
        options = {"axis": axis, "keepdims": keepdims}
        name = f"element_along {axis} {keepdims}"
        cases[name] = Case(shape.element_along, args, oracle, options)
    return cases


def _replaced() -> dict[str, Case]:
    indices: dict[str, tuple[Any, tuple[int, ...]]] = {
        "a row": (2, (3,)),
        "a row by an axis more": (2, (1, 1)),
        "rows": (slice(1, 4), (3, 3)),
        "a column by a number": ((slice(None), 1), ()),
        "chosen rows": (np.array([0, 3]), (1, 3)),
        "elements": ((np.array([0, 3]), np.array([2, 2])), (2,)),
        "a mask": (np.arange(12).reshape(4, 3) % 5 > 1, ()),
    }

    def oracle(t: Any, a: Any, value: Any, index: Any) -> Any:
        y = a.clone()
        y[index] = value
        return y

    return {
        f"set_elements, {name}": Case(shape.set_elements, ((4, 3), sizes), oracle, {"index": index})
        for name, (index, sizes) in indices.items()
    }


CHOOSING = {**_elements(), **_replaced()}
