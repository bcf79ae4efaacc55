"""Test cases of ops that choose elements: by an index, or by their place in the order."""

from typing import Any

import numpy as np
from helpers.ops.opcases import Case, Oracle

from nnmpi.autograd.ops import order, shape

TIES = np.array([[2.0, 5.0, 2.0, -1.0, 2.0], [0.0, 5.0, -np.inf, 0.0, 5.0]])
GAPS = np.array([[2.0, np.nan, 3.0, np.nan], [0.0, 5.0, -np.inf, 1.0]])


def _index_of(name: str) -> Oracle:
    def oracle(t: Any, a: Any, *, axis: int, keepdims: bool, **options: Any) -> Any:
        return getattr(t, name)(t.as_tensor(a), *options.values(), axis, keepdims).indices

    return oracle


def _elements() -> dict[str, Case]:
    cases = {}
    for axis, keepdims in ((1, False), (0, True), (-1, True)):
        index = np.array([2, 0, 1, 2]) if axis else np.array([[1, 0, 3]])
        index = index[:, None] if axis and keepdims else index
        cases[f"element_along {axis} {keepdims}"] = Case(
            shape.element_along,
            ((4, 3), index),
            lambda t, a, i, axis, keepdims: (
                t.take_along_dim(
                    a, t.as_tensor(i) if keepdims else t.as_tensor(i).unsqueeze(axis), axis
                )
                if keepdims
                else t.take_along_dim(a, t.as_tensor(i).unsqueeze(axis), axis).squeeze(axis)
            ),
            {"axis": axis, "keepdims": keepdims},
        )
    return cases


def _places() -> dict[str, Case]:
    cases = {}
    distinct = np.random.default_rng(0).permutation(np.arange(30.0)).reshape(5, 6)
    for axis, keepdims in ((0, False), (1, True)):
        options = {"axis": axis, "keepdims": keepdims}
        for name, op, arrays in (
            ("median", order.median, (distinct, GAPS)),
            ("mode", order.mode, (TIES, TIES[:, :1])),
        ):
            for array in arrays:
                cases[f"{name} {axis} {array.shape}"] = Case(
                    op, (array,), _index_of(name), options, has_gradient=False
                )
        cases[f"kth {axis}"] = Case(
            order.kth, (distinct,), _index_of("kthvalue"), {**options, "k": 2}, has_gradient=False
        )
    return cases


CHOOSING = {**_elements(), **_places()}
