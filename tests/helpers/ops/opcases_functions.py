"""Test cases of ops of functions that are loaded on use.

They choose elements by an index or by their order, move, measure and round them, and sum products
along axes that letters name.
"""

from itertools import product
from typing import Any

import numpy as np
from helpers.ops.opcases import Case, Oracle, label, of_torch, positive

from nnmpi.addons.torchlike.ops import (
    arrange,
    distance,
    einsum,
    gather,
    more_elementwise,
    order,
    rounding,
    scatter_reduce,
)

TIES = np.array([[2.0, 5.0, 2.0, -1.0, 2.0], [0.0, 5.0, -np.inf, 0.0, 5.0]])
GAPS = np.array([[2.0, np.nan, 3.0, np.nan], [0.0, 5.0, -np.inf, 1.0]])
HALVES = np.array([[-2.5, -0.5, 0.0], [0.5, 1.5, 2.4]])


def _index_of(name: str) -> Oracle:
    def oracle(t: Any, a: Any, *, axis: int, keepdims: bool, **options: Any) -> Any:
        return getattr(t, name)(t.as_tensor(a), *options.values(), axis, keepdims).indices

    return oracle


def _places() -> dict[str, Case]:
    cases = {}
    distinct = np.random.default_rng(0).permutation(np.arange(30.0)).reshape(5, 6)
    ops = {"median": (order.median, distinct, GAPS), "mode": (order.mode, TIES, TIES[:, :1])}
    for axis, keepdims in ((0, False), (1, True)):
        options = {"axis": axis, "keepdims": keepdims}
        for name, (op, *arrays) in ops.items():
            for a in arrays:
                cases[f"{name} {axis} {a.shape}"] = Case(op, (a,), _index_of(name), options)
        cases[f"middle {axis}"] = Case(
            order.middle, (TIES[axis],), of_torch("median"), smooth=False
        )
        options = {**options, "k": 2}
        cases[f"kth {axis}"] = Case(order.kth, (distinct,), _index_of("kthvalue"), options)
    return {
        name: case._replace(has_gradient=case.op is order.middle) for name, case in cases.items()
    }


def _sorted() -> dict[str, Case]:
    def argsort(t: Any, a: Any, axis: int, descending: bool) -> Any:
        return t.argsort(t.as_tensor(a), stable=True, dim=axis, descending=descending)

    ties = np.array([[2.0, np.nan, 2.0, -1.0, 2.0], [0.0, 5.0, -np.inf, 0.0, np.inf]])
    cases = {}
    for axis, descending in product((0, -1), (False, True)):
        options = {"axis": axis, "descending": descending}
        cases[f"argsort {axis} {descending}"] = Case(
            order.argsort, (ties,), argsort, options, has_gradient=False
        )
    index, oracle = np.array([[2, 0, 1], [0, 2, 1]]), of_torch("take_along_dim")
    for axis, places in ((1, index), (0, np.array([[1, 0, 1], [0, 1, 0]])), (-1, index[:, :1])):
        cases[f"take_along_axis {axis} {label(places.shape)}"] = Case(
            order.take_along_axis, ((2, 3), places), oracle, {"axis": axis}
        )
    return cases


def _with_index(name: str) -> Oracle:
    """PyTorch's function of this name of an array, an axis, an index and what else there is."""
    return lambda t, a, i, *s, axis, **options: getattr(t, name)(a, axis, i, *s, **options)


def _indexed() -> dict[str, Case]:
    index, distinct = np.array([[2, 0, 2], [1, 1, 0]]), np.array([[2, 0, 1], [1, 2, 0]])
    cases = {}
    for name, adds, at in (("scatter", False, distinct), ("scatter_add", True, index)):
        cases[f"{name} 1"] = Case(
            *(gather.scatter, ((2, 4), at, (2, 3))),
            lambda t, a, i, s, axis, adds, name=name: getattr(t, name)(a, axis, i, s),
            {"axis": 1, "adds": adds},
        )
    for axis in (0, 1):
        options: dict[str, Any] = {"axis": axis}
        oracle = _with_index("gather")
        cases[f"gather {axis}"] = Case(gather.gather, ((3, 4), index), oracle, options)
        args, options = ((3, 3), index[0], (3, 3)), {"axis": axis, "alpha": 2.5}
        oracle = _with_index("index_add")
        cases[f"index_add {axis}"] = Case(gather.index_add, args, oracle, options)
    return cases


def _reduced_by_place() -> dict[str, Case]:
    cases = {}
    a = np.array([[0.0, 2.0, 0.5, 1.0], [3.0, -1.0, 2.0, 0.0], [1.5, 0.0, -2.0, 4.0]])
    source = np.array([[2.0, 0.0, 3.0], [0.0, 2.0, 0.0], [-1.0, 4.0, 2.5]])
    places, oracle = np.array([[2, 0, 2], [1, 1, 0], [0, 0, 0]]), _with_index("scatter_reduce")
    for reduce, with_self in product(scatter_reduce.WRITES, (True, False)):
        options = {"axis": 1, "reduce": reduce, "include_self": with_self}
        cases[f"scatter_reduce {reduce} {with_self}"] = Case(
            scatter_reduce.scatter_reduce, (a, places, source), oracle, options, smooth=False
        )
    return cases


def _arranged() -> dict[str, Case]:
    def roll(t: Any, a: Any, shifts: Any, axes: Any) -> Any:
        return t.roll(a, shifts, axes or ())

    cases = {}
    for axes in ((), (0,), (1, 0)):
        cases[f"flip {axes}"] = Case(arrange.flip, ((2, 3),), of_torch("flip"), {"axes": axes})
    for shifts, axes in (((2,), None), ((1, -2), (0, 1))):
        options = {"shifts": shifts, "axes": axes}
        cases[f"roll {shifts}"] = Case(arrange.roll, ((2, 3),), roll, options)
    for offset in (-1, 0, 2):
        for op, sizes in ((arrange.diagonal, (3, 4)), (arrange.on_diagonal, (3,))):
            name, options = f"{op.__name__} {offset}", {"offset": offset}
            cases[name] = Case(op, (sizes,), of_torch("diag"), options)
    return cases


def _norms() -> dict[str, Case]:
    cases = {}
    for p, axis in ((2.0, None), (2.0, 1), (1.0, (0, 1)), (3.5, 0)):
        for sizes in ((2, 3), (0, 3)):
            options = {"p": p, "axis": axis, "keepdims": axis == 1}
            cases[f"p_norm {p} {axis} {sizes}"] = Case(
                distance.p_norm, (sizes,), of_torch("norm"), options
            )
    args, options = (np.array([[0.0, 0.0], [0.0, 3.0]]),), {"p": 2.0, "axis": 1}
    cases["p_norm of zeros"] = Case(distance.p_norm, args, of_torch("norm"), options, smooth=False)
    return cases


def _rounded() -> dict[str, Case]:
    names = {"sign": "sign", "floor": "floor", "ceil": "ceil", "trunc": "trunc", "rint": "round"}
    return {
        name: Case(getattr(rounding, name), (HALVES,), of_torch(of), smooth=False)
        for name, of in names.items()
    }


def _more_elementwise() -> dict[str, Case]:
    def div(t: Any, a: Any, b: Any, to_floor: bool) -> Any:
        return t.div(a, b, rounding_mode="floor" if to_floor else "trunc")

    ops, numbers = more_elementwise, {"nan": 0.5, "posinf": None, "neginf": -2.0}
    cases = {
        "atan": Case(ops.atan, ((2, 3),), of_torch("atan")),
        "log2": Case(ops.log2, (positive(2, 3),), of_torch("log2")),
        "nan_to_num": Case(ops.nan_to_num, (GAPS,), of_torch("nan_to_num"), numbers, smooth=False),
    }
    for to_floor, args in product((True, False), ((HALVES, (2, 1)), (HALVES, -0.4))):
        cases[f"rounded_quotient {to_floor} {label(args[1])}"] = Case(
            ops.rounded_quotient, args, div, {"to_floor": to_floor}, smooth=False
        )
    for axis, zeros in product((0, 1), ((), (1,), (1, 2))):
        a = np.arange(1.0, 13.0).reshape(3, 4) / 3
        a[:, [*zeros]] = a[[*zeros], :] = 0
        name = f"cumprod {axis}, zeros {zeros}"
        cases[name] = Case(ops.cumprod, (a,), of_torch("cumprod"), {"axis": axis})
    return cases


EQUATIONS: dict[str, tuple[tuple[int, ...], ...]] = {
    "ij,jk->ik": ((2, 3), (3, 4)),
    "bij,bkj->bik": ((5, 2, 3), (5, 4, 3)),
    "bhid,bhjd->bhij": ((2, 3, 4, 5), (2, 3, 6, 5)),
    "ij,jk,kl->il": ((2, 3), (3, 4), (4, 2)),
    "i,j->ij": ((3,), (4,)),
    "ij->": ((3, 4),),
    "ij->i": ((3, 4),),
    "ijk->kij": ((2, 3, 4),),
    "ii->i": ((3, 3),),
    "ii": ((3, 3),),
    "iij,i->j": ((3, 3, 2), (3,)),
    "ij,i->ij": ((3, 4), (3,)),
    "ij,kj": ((2, 3), (4, 3)),
    "...i,...i->...": ((2, 3, 4), (3, 4)),
    "...ij,...jk": ((5, 1, 2, 3), (4, 3, 2)),
    "b...,b->...": ((2, 3, 4), (2,)),
    "ij,ij->i": ((3, 4), (1, 4)),
    " i j , jk -> i k ": ((2, 3), (3, 4)),
    "...->": ((2, 3),),
    "bi,ij->bj": ((0, 3), (3, 2)),
}


def _einsums() -> dict[str, Case]:
    return {
        f"einsum {equation}": Case(
            einsum.einsum,
            sizes,
            lambda t, *arrays, equation: t.einsum(equation, *arrays),
            {"equation": equation},
        )
        for equation, sizes in EQUATIONS.items()
    }


FUNCTIONS = {
    **_places(),
    **_sorted(),
    **_indexed(),
    **_arranged(),
    **_norms(),
    **_rounded(),
    **_more_elementwise(),
    **_reduced_by_place(),
    **_einsums(),
}
