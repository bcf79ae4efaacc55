"""Test cases of ops: reductions, rearrangements, indexing and products."""

from itertools import product
from typing import Any

import numpy as np
from helpers.ops.opcases import Case, Oracle, label, of_torch

from nnmpi.autograd.ops import linear, reduce, shape


def _reduced(name: str) -> Oracle:
    """PyTorch's reduction of this name, with NumPy's meaning of no axis and of no axes."""

    def oracle(t: Any, a: Any, axis: Any = None, keepdims: bool = False) -> Any:
        axes = axis if isinstance(axis, tuple) else (int(axis),) if axis is not None else None
        axes = tuple(range(a.ndim)) if axes is None else axes
        return getattr(t, name)(a, dim=axes, keepdim=keepdims) if axes else a * 1

    return oracle


REDUCTIONS = {"sum": reduce.sum, "mean": reduce.mean, "amax": reduce.amax, "amin": reduce.amin}
AXES = (None, 0, -1, np.int64(1), (0, 2), (-1, 0), (2, 1, 0), ())


def _reductions() -> dict[str, Case]:
    tries: list[tuple[tuple[int, ...], dict[str, Any]]] = [
        ((2, 3, 4), {"axis": axis, "keepdims": keepdims})
        for axis, keepdims in product(AXES, (False, True))
    ]
    tries += [((), {"axis": axis}) for axis in (None, 0, -1, (0,), ())]
    tries += [
        ((), {"axis": -1, "keepdims": True}),
        ((3, 0), {"axis": 0}),
        ((0, 3), {"axis": -1, "keepdims": True}),
    ]
    cases = {
        f"{name} {label(sizes)} {label(options)}": Case(op, (sizes,), _reduced(name), options)
        for (name, op), (sizes, options) in product(REDUCTIONS.items(), tries)
    }
    for sizes, axis in (((0,), None), ((2, 0), 1)):
        name, options = f"sum of nothing {label(sizes)}", {"axis": axis}
        cases[name] = Case(reduce.sum, (sizes,), _reduced("sum"), options)
    equals = np.array([[1.0, 1.0, 0.0], [2.0, 2.0, 2.0], [0.0, 1.0, 2.0]])
    for op, axis in product((reduce.max, reduce.min, reduce.amax, reduce.amin), (1, None)):
        oracle = _reduced({"max": "amax", "min": "amin"}.get(op.__name__, op.__name__))
        cases[f"{op.__name__} of equals {axis}"] = Case(
            op, (equals,), oracle, {"axis": axis}, smooth=False
        )
    return cases


ZEROS = {
    "no zero": np.array([[1.5, -2.0, 0.5], [3.0, 1.0, -1.0]]),
    "a zero": np.array([[1.5, 0.0, 0.5], [3.0, 1.0, -1.0]]),
    "two zeros": np.array([[1.5, 0.0, 0.0], [0.0, 1.0, -1.0]]),
}


def _along() -> dict[str, Case]:
    """Products, sums along an axis and spreads: the number of elements matters, and zeros do."""

    def prod(t: Any, a: Any, axis: Any, keepdims: bool = False) -> Any:
        axes = range(a.ndim) if axis is None else np.atleast_1d(axis) % a.ndim
        for k in sorted(axes, reverse=True):
            a = t.prod(a, int(k), keepdim=keepdims)
        return a

    def spread(name: str) -> Oracle:
        return lambda t, a, axis, ddof=0, keepdims=False: getattr(t, name)(
            a, dim=axis, correction=ddof, keepdim=keepdims
        )

    tries: list[tuple[tuple[int, ...], dict[str, Any]]] = [
        *(((2, 3, 4), {"axis": axis}) for axis in (None, 0, -1, (0, 2), (2, 0), (0, 1, 2))),
        *(((2, 3, 4), {"axis": (1, 2), "keepdims": True}), ((), {"axis": None})),
        *(((0, 3), {"axis": axis}) for axis in (0, 1)),
        *(((3, 0), {"axis": None}), ((5, 1), {"axis": 1})),
    ]
    cases = {
        f"prod {label(sizes)} {label(options)}": Case(reduce.prod, (sizes,), prod, options)
        for sizes, options in tries
    }
    for (name, a), axis in product(ZEROS.items(), (0, 1, None)):
        cases[f"prod of {name} {axis}"] = Case(reduce.prod, (a,), prod, {"axis": axis})
    for sizes, axis in (((2, 3, 4), 0), ((2, 3, 4), -1), ((5,), 0), ((), 0), ((0, 3), 0)):
        name = f"cumsum {label(sizes)} {axis}"
        cases[name] = Case(reduce.cumsum, (sizes,), of_torch("cumsum"), {"axis": axis})
    ways = [{"axis": axis, "ddof": ddof} for axis, ddof in product((None, 1, (0, 2)), (0, 1))]
    ways.append({"axis": -1, "keepdims": True, "ddof": 0.5})
    for (name, op), options in product({"var": reduce.var, "std": reduce.std}.items(), ways):
        cases[f"{name} {label(options)}"] = Case(op, ((2, 3, 4),), spread(name), options)
    flat = np.array([[2.0, 2.0, 2.0], [1.0, 2.0, 3.0]])
    cases["std of equals"] = Case(reduce.std, (flat,), spread("std"), {"axis": 1}, smooth=False)
    return cases


def _moves() -> dict[str, Case]:
    def permuted(t: Any, a: Any, axes: Any) -> Any:
        return a.permute(axes or tuple(reversed(range(a.ndim))))

    def joined(t: Any, *parts: Any, axis: int) -> Any:
        return t.cat(parts, axis)

    cases, large = {}, (2, 3, 4)
    tries: tuple[Any, ...] = ((large, (6, 4)), (large, (-1,)), (large, (4, -1, 2)), ((), (1, 1)))
    for sizes, to in (*tries, ((1,), ()), ((0, 3), (3, 0))):
        name = f"reshape {label(sizes)} {label(to)}"
        cases[name] = Case(shape.reshape, (sizes,), of_torch("reshape"), {"shape": to})
    tries = (large, None), (large, (1, 2, 0)), (large, (-1, 0, -2))
    for sizes, axes in (*tries, ((3,), None), ((), None), ((0, 3), (1, 0))):
        name = f"transpose {label(sizes)} {axes}"
        cases[name] = Case(shape.transpose, (sizes,), permuted, {"axes": axes})
    for sizes, to in (((3, 1), large), ((), (2, 2)), ((1, 3), (0, 3)), ((3,), (3,))):
        name = f"broadcast {label(sizes)} {label(to)}"
        cases[name] = Case(shape.broadcast_to, (sizes,), of_torch("broadcast_to"), {"shape": to})
    for name, parts, axis in (
        ("rows", ((2, 3), (1, 3)), 0),
        ("columns", ((2, 3), (2, 1), (2, 4)), -1),
        ("planes", (large, (2, 2, 4)), 1),
        ("with an empty one", ((2, 3), (0, 3)), 0),
        ("one", ((2, 3),), 0),
    ):
        cases[f"concatenate {name}"] = Case(shape.concatenate, parts, joined, {"axis": axis})
    return cases


def _taken(t: Any, a: Any, index: Any) -> Any:
    """a[index] in PyTorch: its slices cannot run backwards, and its bytes are masks."""

    def part(k: Any) -> Any:
        if isinstance(k, slice) and k.step == -1:
            return t.arange(len(a) - 1, -1, -1)
        if isinstance(k, np.ndarray):
            return t.as_tensor(k if k.dtype == bool else k.astype(np.int64))
        return k

    return a[tuple(map(part, index)) if isinstance(index, tuple) else part(index)]


TWICE = np.array([2, 0, 2, -1])
INDICES: dict[str, Any] = {
    "an integer": 1,
    "a negative integer": -1,
    "NumPy's integer": np.int64(2),
    "a slice": slice(1, 3),
    "a slice with a step": slice(None, None, 2),
    "a slice backwards": slice(None, None, -1),
    "an empty slice": slice(2, 2),
    "integers and slices": (0, slice(1, None), 2),
    "a new axis": (slice(None), None),
    "an ellipsis": (Ellipsis, 1),
    "one element": (1, 2, 3),
    "integers that repeat": TWICE,
    "a list that repeats": [1, 1, 0],
    "a table of integers": np.array([[0, 2], [2, 2]]),
    "unsigned bytes": np.array([2, 2, 0], np.uint8),
    "no integers": np.array([], np.int64),
    "integers of two axes": (TWICE, np.array([1, 0, 1, 1])),
    "integers beside a slice": (slice(None), TWICE),
    "integers beside an integer": (1, TWICE),
}
MASKS: dict[str, Any] = {
    "a mask": np.array([True, False, True]),
    "a mask of two axes": np.arange(12).reshape(3, 4) % 3 == 0,
    "a mask of nothing": np.zeros(3, bool),
}


def _places() -> dict[str, Case]:
    return {
        f"getitem, {name}": Case(
            shape.getitem, ((3, 4, 5),), _taken, {"index": index}, waits=2 * (name in MASKS)
        )
        for name, index in {**INDICES, **MASKS}.items()
    }


MATRICES = [
    ((2, 3), (3, 4)),
    ((3,), (3,)),
    ((3,), (3, 4)),
    ((2, 3), (3,)),
    ((5, 2, 3), (5, 3, 4)),
    ((5, 2, 3), (3, 4)),
    ((2, 3), (5, 3, 4)),
    ((1, 2, 3), (5, 3, 4)),
    ((6, 1, 2, 3), (5, 3, 4)),
    ((6, 1, 2, 3), (1, 5, 3, 1)),
    ((3,), (5, 3, 4)),
    ((5, 2, 3), (3,)),
    ((1, 3), (3, 1)),
    ((0, 3), (3, 2)),
    ((2, 0), (0, 3)),
]


def _products() -> dict[str, Case]:
    def linear_oracle(t: Any, x: Any, w: Any, b: Any, relu: bool = False) -> Any:
        y = t.nn.functional.linear(x, w, b)
        return y.relu() if relu else y

    cases = {
        f"matmul {label(pair)}": Case(linear.matmul, pair, lambda t, a, b: a @ b)
        for pair in MATRICES
    }
    for x, b, relu in product(
        ((4, 3), (2, 4, 3), (3,), (1, 3), (0, 3), (0, 2, 3)), ((5,), None), (False, True)
    ):
        name = f"linear {label(x)}{' + b' if b else ''}{', relu' if relu else ''}"
        cases[name] = Case(linear.linear, (x, (5, 3), b), linear_oracle, {"relu": relu})

    def mlp_oracle(t: Any, x: Any, *parameters: Any, relus: Any) -> Any:
        for w, b, relu in zip(parameters[::2], parameters[1::2], relus, strict=True):
            x = linear_oracle(t, x, w, b, relu)
        return x

    for relus in ((True, False), (False, True)):
        arrays = ((4, 3), (20, 3), (20,), (2, 20), None)
        cases[f"mlp {label(relus)}"] = Case(linear.mlp, arrays, mlp_oracle, {"relus": relus})
    return cases


SHAPES = _reductions() | _along() | _moves() | _places() | _products()
