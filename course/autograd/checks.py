"""Checks of the assignment autograd: gradients against directional derivatives, in float64."""

import ast
import io
import tokenize
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy import ndarray
from numpy.random import Generator

import nnmpi
from classroom import Check, Finding, differs, first, needed, shape_of
from classroom.remote import StudentError, source_of
from nnmpi.comm import Comm
from nnmpi.nn import functional

ALLOWED: dict[str, tuple[str, ...]] = {}
BOUND = 1e-7
"""The relative error of a gradient: that of the differences below is about 1e-10."""
MOST_LINES, WIDTH = 80, 100
CHAIN = 5000
OPS = ("matmul", "add", "mul", "exp", "log", "relu", "sum", "transpose", "take", "cross_entropy")
LABELS = {
    "take": "take with rows that occur several times",
    "cross_entropy": "cross_entropy of scores near 1000",
}


class Case(NamedTuple):
    """Arguments of a function of tensors, and that function in NumPy."""

    arrays: tuple[ndarray, ...]
    call: Callable[..., Any]  # (adapters, *tensors)
    truth: Callable[..., ndarray]  # (*arrays)


# ---- directional derivatives


def derivative(f: Callable[[ndarray], float], x: ndarray, v: ndarray, h: float = 1e-3) -> float:
    """The derivative of f at x along v, with an error of order h^4."""
    near, far = f(x + h * v) - f(x - h * v), f(x + 2 * h * v) - f(x - 2 * h * v)
    return (8 * near - far) / (12 * h)


def wrong_gradient(
    f: Callable[[ndarray], float], x: ndarray, grad: Any, label: str, rng: Generator
) -> Finding | None:
    """Compares a gradient with derivatives along three directions; then names an element."""
    wrong = shape_of(grad, x.shape, label)
    if wrong:
        return Finding(0, wrong)
    directions = rng.standard_normal((3, *x.shape))
    expected = np.array([derivative(f, x, v) for v in directions])
    got = np.array([(grad * v).sum() for v in directions])
    if np.allclose(got, expected, rtol=BOUND, atol=BOUND * np.abs(grad).max(initial=0)):
        return None
    units = np.eye(x.size).reshape(x.size, *x.shape)
    each = np.array([derivative(f, x, unit) for unit in units]).reshape(x.shape)
    along = f"{label}: the derivative along a direction is {got[0]}, expected {expected[0]}"
    return differs(0, grad, each, label, rtol=BOUND) or Finding(0, along)


def wrong_case(case: Case, adapters: Any, rng: Generator, label: str) -> Finding | None:
    """Compares the value, then the gradient of each argument."""
    with np.errstate(all="ignore"):  # an overflow shows as a wrong number
        tensors = [adapters.Tensor(x.copy()) for x in case.arrays]
        y, expected = case.call(adapters, *tensors), case.truth(*case.arrays)
        wrong = differs(0, getattr(y, "data", y), expected, f"{label}: the value")
        if wrong:
            return wrong
        c = rng.standard_normal(expected.shape)
        adapters.backward(y, c)
        for k, (t, x) in enumerate(zip(tensors, case.arrays, strict=True)):

            def weighted(z: ndarray, k: int = k) -> float:
                arrays = [*case.arrays[:k], z, *case.arrays[k + 1 :]]
                return float((c * case.truth(*arrays)).sum())

            wrong = wrong or wrong_gradient(
                weighted, x, t.grad, f"{label}: the gradient of argument {k}", rng
            )
    return wrong


# ---- one function


def mean_of_logs(z: ndarray, labels: ndarray) -> ndarray:
    z = z - z.max(axis=1, keepdims=True)
    return np.asarray((np.log(np.exp(z).sum(axis=1)) - z[np.arange(len(z)), labels]).mean())


def case_of(op: str, rng: Generator) -> Case:
    """A case of one function, with shapes from the seed."""
    m, k, n = (int(i) for i in rng.permutation([2, 3, 4, 5])[:3])
    a, b, cube = (rng.standard_normal(s) for s in ((m, k), (m, k), (m, k, n)))
    steep = a + 0.1 * np.sign(a)  # no element near 0, where relu has no derivative
    axes = (2, 0, 1)
    index = rng.integers(0, m, (n, m + 1))  # a row at least twice: more numbers than rows
    labels = rng.integers(0, k, m)
    high = a + rng.uniform(900, 1100, (m, 1))

    def called(*options: Any) -> Callable[..., Any]:
        return lambda adapters, *tensors: getattr(adapters, op)(*tensors, *options)

    return {
        "matmul": Case((a, rng.standard_normal((k, n))), called(), np.matmul),
        "add": Case((a, b), called(), np.add),
        "mul": Case((a, b), called(), np.multiply),
        "exp": Case((a,), called(), np.exp),
        "log": Case((rng.uniform(0.5, 2, (m, k)),), called(), np.log),
        "relu": Case((steep,), called(), lambda x: np.maximum(x, 0)),
        "sum": Case((cube,), called(1), lambda x: x.sum(1)),
        "transpose": Case((cube,), called(axes), lambda x: x.transpose(axes)),
        "take": Case((a,), called(index), lambda x: x[index]),
        "cross_entropy": Case((high,), called(labels), lambda z: mean_of_logs(z, labels)),
    }[op]


def of_op(comm: Comm, adapters: Any, rng: Generator, op: str) -> Finding | None:
    wrong = wrong_case(case_of(op, rng), adapters, rng, LABELS.get(op, op))
    return wrong or (at_zero(adapters) if op == "relu" else None)


def at_zero(adapters: Any) -> Finding | None:
    """The gradient of relu at 0 is 0, as in PyTorch; any number from 0 to 1 would be one."""
    x = adapters.Tensor(np.zeros(3))
    adapters.backward(adapters.relu(x), np.ones(3))
    wrong = differs(0, x.grad, np.zeros(3), "relu at 0: the gradient")
    return wrong and wrong._replace(text=f"{wrong.text}: README.md asks for 0 there, as in PyTorch")


def broadcasting(comm: Comm, adapters: Any, rng: Generator) -> Finding | None:
    m, k, n = (int(i) for i in rng.permutation([2, 3, 4, 5])[:3])
    shapes = (((m, n), (n,)), ((m, n), ()), ((m, 1), (1, n)), ((m, 1, n), (k, 1)))
    wrong = None
    for s, t in shapes:
        arrays = rng.standard_normal(s), rng.standard_normal(t)
        for op, truth in (("add", np.add), ("mul", np.multiply)):
            case = Case(arrays, lambda adapters, a, b, op=op: getattr(adapters, op)(a, b), truth)
            wrong = wrong or wrong_case(case, adapters, rng, f"{op} of shapes {s} and {t}")
    return wrong


# ---- graphs


def used_twice(comm: Comm, adapters: Any, rng: Generator) -> Finding | None:
    case = Case(
        (rng.standard_normal((3, 4)),),
        lambda A, x: A.add(A.mul(x, x), x),
        lambda x: x * x + x,
    )
    return wrong_case(case, adapters, rng, "x * x + x, where gradients of three uses add up")


def order_of_visits(comm: Comm, adapters: Any, rng: Generator) -> Finding | None:
    """A graph in which neither the order of a depth-first nor of a breadth-first walk is right."""

    def call(A: Any, x: Any, w: Any) -> Any:
        a = A.mul(x, w)
        b = A.exp(a)
        return A.add(A.add(A.mul(A.add(b, a), b), a), A.log(A.add(b, a)))

    def truth(x: ndarray, w: ndarray) -> ndarray:
        a = x * w
        b = np.exp(a)
        return (b + a) * b + a + np.log(b + a)

    case = Case((rng.uniform(0.5, 1, (2, 3)), rng.uniform(0.5, 1, (2, 3))), call, truth)
    label = "a value is visited when the gradients of all its uses have been added"
    wrong = wrong_case(case, adapters, rng, label)
    if wrong:
        return wrong
    x, half = (adapters.Tensor(np.full(2, v)) for v in (1.0, 0.5))
    y = x
    for _ in range(40):  # 2^40 paths, 120 functions
        y = adapters.add(adapters.mul(y, half), adapters.mul(y, half))
    adapters.backward(y, np.ones(2))
    return differs(0, x.grad, np.ones(2), "the gradient at the end of 40 forks")


def deep_chain(comm: Comm, adapters: Any, rng: Generator) -> Finding | None:
    x, step = adapters.Tensor(rng.standard_normal(2)), adapters.Tensor(np.array(0.25))
    y = x
    try:
        for _ in range(CHAIN):
            y = adapters.add(y, step)
        adapters.backward(y, np.ones(2))
    except StudentError as error:
        if error.kind != "RecursionError":
            raise
        return Finding(
            0, f"a chain of {CHAIN:,} sums ends in a RecursionError: use a list as stack"
        )
    return first(
        differs(0, x.grad, np.ones(2), f"the gradient at the end of a chain of {CHAIN:,} sums"),
        differs(0, step.grad, np.array(2.0 * CHAIN), "the gradient of a value in 5,000 sums"),
    )


def two_passes(comm: Comm, adapters: Any, rng: Generator) -> Finding | None:
    values, c = rng.standard_normal((2, 3)), rng.standard_normal(3)
    a, b = (adapters.Tensor(v.copy()) for v in values)
    seed = c.copy()
    adapters.backward(adapters.add(a, b), seed)
    adapters.backward(adapters.mul(a, a), seed)
    shared = differs(0, b.grad, c, "b.grad after a pass without b")
    return first(
        differs(0, a.grad, c + 2 * c * values[0], "a.grad after two calls of backward, which add"),
        shared and shared._replace(text=f"{shared.text}: it may be the same array as a.grad"),
        differs(0, seed, c, "after backward, its argument g"),
    )


# ---- training, and the length of the source


class Oracle:
    """The ten functions, by nnmpi's own autograd."""

    Tensor = staticmethod(partial(nnmpi.tensor, requires_grad=True))
    matmul = staticmethod(lambda a, b: a @ b)
    add = staticmethod(lambda a, b: a + b)
    mul = staticmethod(lambda a, b: a * b)
    exp = staticmethod(lambda a: a.exp())
    log = staticmethod(lambda a: a.log())
    relu = staticmethod(functional.relu)
    sum = staticmethod(lambda a, axis: a.sum(axis))
    transpose = staticmethod(lambda a, axes: a.transpose(axes))
    take = staticmethod(lambda a, index: functional.embedding(index, a))
    cross_entropy = staticmethod(functional.cross_entropy)
    backward = staticmethod(lambda root, g: root.backward(g))


def array_of(value: Any) -> Any:
    """The array of a tensor of nnmpi, which makes the expected numbers; else the value."""
    return value.array if isinstance(value, nnmpi.Tensor) else value


def trained(A: Any, values: Sequence[ndarray], x: ndarray, y: ndarray) -> list[ndarray]:
    """Ten losses of a text classifier that uses all ten functions, then its parameters."""
    values, losses = [v.copy() for v in values], []
    for _ in range(10):
        table, W1, b1, W2, scale = tensors = [A.Tensor(v) for v in values]
        h = A.relu(A.add(A.matmul(A.sum(A.take(table, x), 1), W1), b1))
        smooth = A.log(A.add(A.exp(h), A.Tensor(np.ones(1))))
        scores = A.matmul(A.mul(smooth, scale), A.transpose(W2, (1, 0)))
        loss = A.cross_entropy(scores, y)
        losses.append(needed(array_of(getattr(loss, "data", loss)), (), "the loss"))
        A.backward(loss, np.array(1.0))
        for i, t in enumerate(tensors):
            grad = needed(array_of(t.grad), values[i].shape, f"the gradient of parameter {i}")
            values[i] = values[i] - 0.1 * grad
    return [*losses, *values]


def training(comm: Comm, adapters: Any, rng: Generator) -> Finding | None:
    shapes = (7, 4), (4, 6), (6,), (3, 6), (6,)
    values = [rng.standard_normal(s) for s in shapes]
    x, y = rng.integers(0, 7, (8, 5)), rng.integers(0, 3, 8)
    results = trained(adapters, values, x, y), trained(Oracle, values, x, y)
    labels = ["the loss"] * 10 + [f"a parameter of shape {s}" for s in shapes]
    steps = [*range(10), *[10] * len(shapes)]
    wrong = zip(*results, labels, steps, strict=True)
    return first(*(differs(0, got, e, label, step) for got, e, label, step in wrong))


def code_lines(data: bytes) -> int:
    """The lines with code, without docstrings; a long line counts for each 100 characters."""
    source = data.decode(tokenize.detect_encoding(io.BytesIO(data).readline)[0])
    skipped = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT}
    skipped |= {tokenize.ENDMARKER, tokenize.ENCODING}
    numbers = set[int]()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type not in skipped:
            numbers |= {*range(token.start[0], token.end[0] + 1)}
    for node in ast.walk(ast.parse(source)):  # a docstring is a statement that is a string
        if isinstance(node, ast.Expr) and isinstance(getattr(node.value, "value", None), str):
            numbers -= {*range(node.lineno, (node.end_lineno or node.lineno) + 1)}
    lines = source.splitlines()
    return sum(-(-len(lines[n - 1]) // WIDTH) for n in numbers)


def length(comm: Comm, adapters: Any, rng: Generator) -> Finding | None:
    wrong = training(comm, adapters, rng)
    count = code_lines(source_of(adapters))
    if wrong or count <= MOST_LINES:
        return wrong
    return Finding(0, f"adapters.py has {count} lines of code, expected at most {MOST_LINES}")


CHECKS = (
    *(Check(op, 4, "law", (1,), partial(of_op, op=op)) for op in OPS),
    Check("broadcasting", 10, "law", (1,), broadcasting),
    Check("used twice", 10, "law", (1,), used_twice),
    Check("order of visits", 10, "law", (1,), order_of_visits),
    Check("deep chain", 10, "law", (1,), deep_chain),
    Check("two passes", 5, "law", (1,), two_passes),
    Check("training", 10, "law", (1,), training),
    Check("80 lines", 5, "shape", (1,), length),
)
