"""Test cases of ops that choose elements by an index or by their order, move and measure them."""

from typing import Any

import numpy as np
from helpers.ops.opcases import Case, Oracle

from nnmpi.autograd.ops import arrange, distance, gather, order, shape

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


def _indexed() -> dict[str, Case]:
    index = np.array([[2, 0, 2], [1, 1, 0]])
    some = np.array([2, 0, 2])
    cases = {}
    for adds in (False, True):
        name = "scatter_add" if adds else "scatter"
        at = index if adds else np.array([[2, 0, 1], [1, 2, 0]])
        cases[f"{name} 1"] = Case(
            gather.scatter,
            ((2, 4), at, (2, 3)),
            lambda t, a, i, s, axis, adds: getattr(t, "scatter_add" if adds else "scatter")(
                a, axis, t.as_tensor(i), s
            ),
            {"axis": 1, "adds": adds},
        )
    for axis in (0, 1):
        cases[f"gather {axis}"] = Case(
            gather.gather,
            ((3, 4), index),
            lambda t, a, i, axis: t.gather(a, axis, t.as_tensor(i)),
            {"axis": axis},
        )
        cases[f"index_add {axis}"] = Case(
            gather.index_add,
            ((3, 3), some, (3, 3)),
            lambda t, a, i, s, axis, alpha: t.index_add(a, axis, t.as_tensor(i), s, alpha=alpha),
            {"axis": axis, "alpha": 2.5},
        )
    return cases


def _replaced() -> dict[str, Case]:
    cases = {}
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

    for name, (index, sizes) in indices.items():
        cases[f"set_elements, {name}"] = Case(
            gather.set_elements, ((4, 3), sizes), oracle, {"index": index}
        )
    return cases


def _arranged() -> dict[str, Case]:
    cases = {}
    for axes in ((), (0,), (1, 0)):
        cases[f"flip {axes}"] = Case(
            arrange.flip, ((2, 3),), lambda t, a, axes: t.flip(a, axes), {"axes": axes}
        )
    for shifts, axes in (((2,), None), ((1, -2), (0, 1))):
        cases[f"roll {shifts}"] = Case(
            arrange.roll,
            ((2, 3),),
            lambda t, a, shifts, axes: t.roll(a, shifts, axes or ()),
            {"shifts": shifts, "axes": axes},
        )
    for offset in (-1, 0, 2):
        cases[f"diagonal {offset}"] = Case(
            arrange.diagonal, ((3, 4),), lambda t, a, offset: t.diag(a, offset), {"offset": offset}
        )
        cases[f"on_diagonal {offset}"] = Case(
            arrange.on_diagonal, ((3,),), lambda t, a, offset: t.diag(a, offset), {"offset": offset}
        )
    return cases


def _norms() -> dict[str, Case]:
    cases = {}
    for p, axis in ((2.0, None), (2.0, 1), (1.0, (0, 1)), (3.5, 0)):
        for sizes in ((2, 3), (0, 3)):
            cases[f"p_norm {p} {axis} {sizes}"] = Case(
                distance.p_norm,
                (sizes,),
                lambda t, a, p, axis, keepdims: t.norm(a, p, axis, keepdims),
                {"p": p, "axis": axis, "keepdims": axis == 1},
            )
    cases["p_norm of zeros"] = Case(
        distance.p_norm,
        (np.array([[0.0, 0.0], [0.0, 3.0]]),),
        lambda t, a, p, axis: t.norm(a, p, axis),
        {"p": 2.0, "axis": 1},
        smooth=False,
    )
    return cases


CHOOSING |= {**_indexed(), **_replaced(), **_arranged(), **_norms()}
