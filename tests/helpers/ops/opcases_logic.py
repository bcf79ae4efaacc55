"""Test cases of ops whose values have no gradient: comparisons, masks, indices, floors."""

from itertools import product
from typing import Any

import numpy as np
from helpers.ops.opcases import Case, Oracle, label, of_torch

from nnmpi.autograd.ops import elementwise, logic

TIES = np.array([[1.0, 2.0, 2.0], [0.0, -1.0, 0.0]])
MASKS = np.array([[True, False, True], [False, False, False]])
ODD = np.array([0.0, np.nan, np.inf, -np.inf])
BITS = np.array([[6, 3, 0], [1, 255, -1]])

_COMPARISONS = {
    "eq": logic.equal,
    "ne": logic.not_equal,
    "lt": logic.less,
    "le": logic.less_equal,
    "gt": logic.greater,
    "ge": logic.greater_equal,
}
_BITWISE = {
    "bitwise_and": logic.bitwise_and,
    "bitwise_or": logic.bitwise_or,
    "bitwise_xor": logic.bitwise_xor,
}
_SHIFTS = {
    "bitwise_left_shift": logic.left_shift,
    "bitwise_right_shift": logic.right_shift,
}


def _named(name: str) -> Oracle:
    return lambda t, a, b: getattr(t, name)(a.detach(), t.as_tensor(b).detach())


def _reduced(name: str) -> Oracle:
    """PyTorch's any or all; no axis means all of them."""

    def oracle(t: Any, a: Any, axis: Any = None, keepdims: bool = False) -> Any:
        axes = tuple(range(a.ndim)) if axis is None else axis
        return getattr(t, name)(a, dim=axes, keepdim=keepdims)

    return oracle


def _cases() -> dict[str, Case]:
    cases = {}
    for (name, op), b in product(_COMPARISONS.items(), (TIES[::-1].copy(), TIES[0], 0.0, 2)):
        cases[f"{name} {label(np.shape(b))} {b!r:.3}"] = Case(op, (TIES, b), _named(name))
    for a, b in ((TIES, TIES[0]), (TIES, -0.3), (BITS, BITS[:, :1]), (BITS, -2)):
        name = f"floor_divide {a.dtype} {b!r:.3}"
        cases[name] = Case(elementwise.floor_divide, (a, b), _named("floor_divide"))
    for (name, op), (a, b) in product(
        _BITWISE.items(), ((MASKS, MASKS[0]), (MASKS, True), (BITS, BITS[0]), (BITS, 3))
    ):
        cases[f"{name} {a.dtype} {label(np.shape(b))}"] = Case(op, (a, b), _named(name))
    for (name, op), b in product(_SHIFTS.items(), (BITS[0], 3)):
        cases[f"{name} {label(np.shape(b))}"] = Case(op, (BITS, b), _named(name))
    for a in (MASKS, BITS):
        cases[f"invert {a.dtype}"] = Case(logic.invert, (a,), of_torch("bitwise_not"))
    for (name, op), a, axis in product(
        {"any": logic.any, "all": logic.all}.items(), (MASKS, TIES), (None, 0, -1, (0, 1))
    ):
        options = {"axis": axis, "keepdims": axis == 0}
        cases[f"{name} {a.dtype} {axis}"] = Case(op, (a,), _reduced(name), options)
    for op in (logic.isnan, logic.isinf, logic.isfinite):
        cases[op.__name__] = Case(op, (ODD,), of_torch(op.__name__))
    for op, axis, keepdims in product((logic.argmax, logic.argmin), (None, 0, -1), (False, True)):
        name, options = f"{op.__name__} {axis} {keepdims}", {"axis": axis, "keepdims": keepdims}
        cases[name] = Case(op, (TIES,), of_torch(op.__name__), options)
    return {name: case._replace(has_gradient=False) for name, case in cases.items()}


LOGIC = _cases()
