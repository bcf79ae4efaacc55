"""Test cases of ops, each with its equivalent in PyTorch: elementwise ops.

An argument is a shape (normal numbers are drawn), a `Draw`, or the value itself:
an array, a Python number, None. An op is differentiated by its floating-point
arrays, not by labels, masks and indices.
"""

from collections.abc import Callable, Mapping
from itertools import product
from operator import attrgetter
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from nnmpi.arrays.kernels import Result
from nnmpi.autograd import apply
from nnmpi.autograd.ops import activations, elementwise, shape

Op = Callable[..., Result]
Oracle = Callable[..., Any]
Draw = Callable[[np.random.Generator], np.ndarray]


class Case(NamedTuple):
    """An op and its arguments, and `oracle(torch, *args, **options)`, the same in PyTorch.

    `run(op, *tensors, **options)` calls it. A case that is not `smooth` sits on
    a kink, where finite differences say nothing. `waits` is how often the host
    waits for a device, forwards and back. The value of one without a gradient
    is of booleans or indices.
    """

    op: Op
    args: tuple[Any, ...]
    oracle: Oracle
    options: Mapping[str, Any] = MappingProxyType({})
    run: Callable[..., Any] = apply
    smooth: bool = True
    waits: int = 0
    has_gradient: bool = True

    def arrays(self, name: str) -> list[Any]:
        """The arguments, drawn with the name of the case as seed."""
        rng = np.random.default_rng(list(name.encode()))

        def made(arg: Any) -> Any:
            if isinstance(arg, tuple):
                return np.asarray(rng.standard_normal(arg))
            return arg(rng) if callable(arg) else arg

        return [made(arg) for arg in self.args]


def of_torch(path: str) -> Oracle:
    """PyTorch's function of this path, which takes the values of the options in their order."""
    return lambda t, *args, **options: attrgetter(path)(t)(*args, *options.values())


def positive(*sizes: int) -> Draw:
    """Numbers from 0.5 to 2."""
    return lambda rng: np.asarray(rng.uniform(0.5, 2.0, sizes))


def label(value: Any) -> str:
    """A short name of shapes and options, for the name of a case."""
    if isinstance(value, Mapping):
        return ",".join(f"{k}={label(v)}" for k, v in value.items())
    if isinstance(value, tuple) and all(isinstance(n, int) for n in value):
        return "x".join(map(str, value)) or "0d"
    return " ".join(map(label, value)) if isinstance(value, tuple) else str(value)


def _tensors(t: Any, *values: Any) -> list[Any]:
    return [t.as_tensor(v, dtype=t.float64) for v in values]


UNARY: dict[str, tuple[Op, Oracle]] = {
    "negative": (elementwise.negative, lambda t, a: -a),
    "exp": (elementwise.exp, of_torch("exp")),
    "absolute": (elementwise.absolute, of_torch("abs")),
    "sin": (elementwise.sin, of_torch("sin")),
    "cos": (elementwise.cos, of_torch("cos")),
    "tanh": (elementwise.tanh, of_torch("tanh")),
    "sigmoid": (elementwise.sigmoid, of_torch("sigmoid")),
    "relu": (elementwise.relu, of_torch("relu")),
    "gelu": (activations.gelu, of_torch("nn.functional.gelu")),
    "gelu_tanh": (activations.gelu_tanh, lambda t, a: t.nn.functional.gelu(a, approximate="tanh")),
    "silu": (activations.silu, of_torch("nn.functional.silu")),
    "copy": (shape.copy, of_torch("clone")),
}
POSITIVE: dict[str, tuple[Op, Oracle]] = {
    "log": (elementwise.log, of_torch("log")),
    "sqrt": (elementwise.sqrt, of_torch("sqrt")),
}
BINARY: dict[str, tuple[Op, Oracle]] = {
    "add": (elementwise.add, lambda t, a, b: a + b),
    "subtract": (elementwise.subtract, lambda t, a, b: a - b),
    "multiply": (elementwise.multiply, lambda t, a, b: a * b),
    "divide": (elementwise.divide, lambda t, a, b: a / b),
    "remainder": (elementwise.remainder, lambda t, a, b: t.remainder(*_tensors(t, a, b))),
    "power": (elementwise.power, lambda t, a, b: a**b),
    "maximum": (elementwise.maximum, lambda t, a, b: t.maximum(*_tensors(t, a, b))),
    "minimum": (elementwise.minimum, lambda t, a, b: t.minimum(*_tensors(t, a, b))),
}
PAIRS = [
    ((), ()),
    ((3, 4), (3, 4)),
    ((3, 4), (4,)),
    ((3, 1), (1, 4)),
    ((), (2, 3)),
    ((2, 1, 3), (4, 1)),
    ((0, 3), (3,)),
    ((1, 3), (0, 3)),
    ((4, 5), 1.5),
    (1.5, (4, 5)),
]
ABOVE_ZERO = {"power": 0, "divide": 1, "remainder": 1}  # which argument has to be positive
ZEROS = np.zeros(4)
SIGNS = np.array([3.0, 0.0, 3.0, -1.0])
FAR = np.array([-40.0, -5.0, 0.0, 1e-3, 5.0, 40.0])
MASK = np.array([[True, False, True], [False, False, True]])


def _pair(name: str, pair: tuple[Any, Any]) -> Case:
    args = list(pair)
    k = ABOVE_ZERO.get(name)
    if k is not None and isinstance(args[k], tuple):
        args[k] = positive(*args[k])
    return Case(BINARY[name][0], tuple(args), BINARY[name][1])


def _arithmetic() -> dict[str, Case]:
    cases = {}
    for sizes in ((), (3,), (2, 3, 4), (0,), (3, 0)):
        for name, (op, oracle) in UNARY.items():
            cases[f"{name} {label(sizes)}"] = Case(op, (sizes,), oracle)
        for name, (op, oracle) in POSITIVE.items():
            cases[f"{name} {label(sizes)}"] = Case(op, (positive(*sizes),), oracle)
    for name, pair in product(BINARY, PAIRS):
        cases[f"{name} {label(pair)}"] = _pair(name, pair)
    return cases


def _kinks() -> dict[str, Case]:
    """Where the derivative is a convention: PyTorch's is used."""
    cases = {}
    for name in ("maximum", "minimum"):
        op, oracle = BINARY[name]
        cases[f"{name} of equals"] = Case(op, (SIGNS, np.abs(SIGNS)), oracle, smooth=False)
        cases[f"{name} beside an equal number"] = Case(op, (SIGNS, 3.0), oracle, smooth=False)
    for name in ("relu", "absolute", "gelu", "gelu_tanh", "sigmoid"):
        op, oracle = UNARY[name]
        cases[f"{name} at 0 and far out"] = Case(op, (FAR,), oracle, smooth=False)
    powers = {
        "0 to the 2": (ZEROS, 2),
        "0 to the 1": (ZEROS, 1),
        "0 to the 0": (ZEROS, 0),
        "zeros to zeros": (ZEROS, np.zeros(4)),
        "zeros to positive numbers": (ZEROS, np.array([1.0, 1.5, 2.0, 3.0])),
        "negative numbers to the 3": (SIGNS, 3),
        "2 to zeros": (2.0, ZEROS),
    }
    for name, args in powers.items():
        cases[name] = Case(elementwise.power, args, lambda t, a, b: a**b, smooth=False)
    return cases


def _clamped() -> dict[str, Case]:
    """Bounds that are arrays: equal to elements and to each other, and the wrong way round."""
    a = np.array([[0.5, 1.0, 2.0, 5.0], [1.0, 3.0, 2.0, -4.0]])
    low, high = np.array([1.0, 3.0, 3.0, 2.0]), np.array([[1.0, 4.0, 2.0, 3.0], [2.0] * 4])
    bounds = {
        "both": (low, high),
        "equal": (high, high),
        "low": (low, None),
        "high": (None, high),
        "0d": (np.asarray(1.5), None),
    }
    return {
        f"clamp {name}": Case(elementwise.clamp, (a, *ends), of_torch("clamp"), smooth=False)
        for name, ends in bounds.items()
    }


def _choices() -> dict[str, Case]:
    def where(t: Any, mask: Any, a: Any, b: Any) -> Any:
        return t.where(mask != 0, *_tensors(t, a, b))

    cases = {
        f"where {label(pair)}": Case(elementwise.where, (MASK, *pair), where)
        for pair in [((2, 3), (2, 3)), ((3,), (2, 1)), ((), (4, 2, 3)), ((2, 3), 0.5), (1.5, (3,))]
    }
    cases["where of integers"] = Case(elementwise.where, (2 * MASK, (2, 3), (2, 3)), where)
    cases["where of 0d"] = Case(elementwise.where, (np.asarray(True), (2, 3), (3,)), where)
    for low, high in ((-0.5, 0.5), (None, 0.25), (0.25, None)):
        options = {"low": low, "high": high}
        cases[f"clip {low} {high}"] = Case(elementwise.clip, ((5, 6),), of_torch("clamp"), options)
    cases["clip at both ends"] = cases["clip -0.5 0.5"]._replace(
        args=(np.array([-2.0, -0.5, 0.0, 0.5, 2.0]),), smooth=False
    )
    cases |= _clamped()
    args, oracle = (np.array([-2.0, -1e-3, 0.0, 0.5, 40.0]),), of_torch("nn.functional.leaky_relu")
    for slope in (0.01, 0.0, 1.5):
        cases[f"leaky_relu {slope}"] = Case(
            activations.leaky_relu, args, oracle, {"slope": slope}, smooth=False
        )
    for dtype in ("float64", "float32"):
        cases[f"astype {dtype}"] = Case(
            *(elementwise.astype, ((3, 4),), lambda t, a, dtype: a.to(getattr(t, dtype))),
            {"dtype": dtype},
            smooth=dtype == "float64",
        )
    return cases


ELEMENTWISE = _arithmetic() | _kinks() | _choices()
