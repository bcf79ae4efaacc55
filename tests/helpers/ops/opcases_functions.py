"""Test cases of ops of functions that are loaded on use.

They choose elements by an index or by their order, move, measure and round them, and sum products
along axes that letters name.
"""

from itertools import product
from typing import Any

import numpy as np
from helpers.ops.opcases import Case, Oracle, label, positive

from nnmpi.autograd.ops import (
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
        cases[f"middle {axis}"] = Case(
            order.middle,
            (TIES[axis],),
            lambda t, a: t.median(a),
            smooth=False,
        )
        cases[f"kth {axis}"] = Case(
            order.kth, (distinct,), _index_of("kthvalue"), {**options, "k": 2}, has_gradient=False
        )
    return cases


def _sorted() -> dict[str, Case]:
    ties = np.array([[2.0, np.nan, 2.0, -1.0, 2.0], [0.0, 5.0, -np.inf, 0.0, np.inf]])
    cases = {}
    for axis, descending in product((0, -1), (False, True)):
        cases[f"argsort {axis} {descending}"] = Case(
            order.argsort,
            (ties,),
            lambda t, a, axis, descending: t.sort(a, stable=True, dim=axis, descending=descending)[
                1
            ],
            {"axis": axis, "descending": descending},
            has_gradient=False,
        )
    index = np.array([[2, 0, 1], [0, 2, 1]])
    for axis, places in ((1, index), (0, np.array([[1, 0, 1], [0, 1, 0]])), (-1, index[:, :1])):
        cases[f"take_along_axis {axis} {label(places.shape)}"] = Case(
            order.take_along_axis,
            ((2, 3), places),
            lambda t, a, index, axis: t.take_along_dim(a, t.as_tensor(index), axis),
            {"axis": axis},
        )
    return cases


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


def _rounded() -> dict[str, Case]:
    cases = {}
    for op in (rounding.sign, rounding.floor, rounding.ceil, rounding.trunc):
        cases[op.__name__] = Case(
            op, (HALVES,), lambda t, a, name=op.__name__: getattr(t, name)(a), smooth=False
        )
    cases["rint"] = Case(rounding.rint, (HALVES,), lambda t, a: t.round(a), smooth=False)
    return cases


def _more_elementwise() -> dict[str, Case]:
    ops = more_elementwise
    cases = {
        "atan": Case(ops.atan, ((2, 3),), lambda t, a: t.atan(a)),
        "log2": Case(ops.log2, (positive(2, 3),), lambda t, a: t.log2(a)),
        "nan_to_num": Case(
            ops.nan_to_num,
            (GAPS,),
            lambda t, a, **options: t.nan_to_num(a, **options),
            {"nan": 0.5, "posinf": None, "neginf": -2.0},
            smooth=False,
        ),
    }
    for to_floor, args in product((True, False), ((HALVES, (2, 1)), (HALVES, -0.4))):
        cases[f"rounded_quotient {to_floor} {label(args[1])}"] = Case(
            ops.rounded_quotient,
            args,
            lambda t, a, b, to_floor: t.div(a, b, rounding_mode="floor" if to_floor else "trunc"),
            {"to_floor": to_floor},
            smooth=False,
        )
    for axis, zeros in product((0, 1), ((), (1,), (1, 2))):
        a = np.arange(1.0, 13.0).reshape(3, 4) / 3
        a[:, [*zeros]] = a[[*zeros], :] = 0
        cases[f"cumprod {axis}, zeros {zeros}"] = Case(
            ops.cumprod, (a,), lambda t, a, axis: t.cumprod(a, axis), {"axis": axis}
        )
    return cases


def _reduced_by_place() -> dict[str, Case]:
    index, cases = np.array([[2, 0, 2], [1, 1, 0], [0, 0, 0]]), {}
    a = np.array([[0.0, 2.0, 0.5, 1.0], [3.0, -1.0, 2.0, 0.0], [1.5, 0.0, -2.0, 4.0]])
    source = np.array([[2.0, 0.0, 3.0], [0.0, 2.0, 0.0], [-1.0, 4.0, 2.5]])
    for reduce, include_self in product(scatter_reduce.WRITES, (True, False)):
        cases[f"scatter_reduce {reduce} {include_self}"] = Case(
            scatter_reduce.scatter_reduce,
            (a, index, source),
            lambda t, a, i, s, axis, reduce, include_self: t.scatter_reduce(
                a, axis, t.as_tensor(i), s, reduce, include_self=include_self
            ),
            {"axis": 1, "reduce": reduce, "include_self": include_self},
            smooth=False,
        )
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
