"""The types of results: PyTorch's where integers meet floats, and for 0-d tensors."""

import operator
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from helpers.ops.oracle import needs_torch, pytorch, same_as_pytorch

import nnmpi
from nnmpi.arrays.dtypes import has_bfloat16
from nnmpi.nn import functional as F

DTYPES = ("bool", "uint8", "int16", "int32", "int64", "float16", "float32", "float64")

NAN = float("nan")

TWO: dict[str, Callable[[Any, Any, Any], Any]] = {
    "+": lambda n, a, b: a + b,
    "*": lambda n, a, b: a * b,
    "/": lambda n, a, b: a / b,
    "maximum": lambda n, a, b: n.maximum(a, b),
    "where": lambda n, a, b: n.where(a > 1, a, b),
    "<": lambda n, a, b: a < b,
    "cat": lambda n, a, b: n.cat([a.reshape(-1), b.reshape(-1)]),
}
ONE: dict[str, Callable[[Any, Any], Any]] = {
    "halved": lambda n, t: t / 2,
    "times a float": lambda n, t: t * 0.5,
    "a float over it": lambda n, t: 1.5 / t,
    "times an integer": lambda n, t: t * 2,
    "functions": lambda n, t: n.exp(t),
    "roots": lambda n, t: t.sqrt(),
    "curves": lambda n, t: t.tanh() + t.sigmoid(),
    "above a float": lambda n, t: t > 0.5,
    "masked fill": lambda n, t: t.masked_fill(t > 1, 0.5),
    "clamped": lambda n, t: t.clamp(1),
    "sums": lambda n, t: t.sum(0),
    "running sums": lambda n, t: t.cumsum(0),
    "products": lambda n, t: t.prod(),
}


@needs_torch
@pytest.mark.parametrize("name", TWO)
@pytest.mark.parametrize("first", DTYPES)
def test_two_tensors(name: str, first: str) -> None:
    """Of all pairs of types, arrays and 0-d tensors: those that PyTorch takes."""
    for second in DTYPES:
        rtol = 2e-3 if "float16" in (first, second) else 1e-6
        for shapes in (((3,), (3,)), ((), (3,)), ((3,), ()), ((), ())):
            a, b = (np.resize([1, 2, 3], shape) for shape in shapes)
            a, b = a.astype(first), b.astype(second)
            call = lambda n, a=a, b=b: TWO[name](n, n.tensor(a), n.tensor(b))  # noqa: E731
            same_as_pytorch(call, rtol=rtol)


@needs_torch
@pytest.mark.parametrize("name", ONE)
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_tensor_and_a_number(name: str, dtype: str) -> None:
    def call(n: Any) -> Any:
        return ONE[name](n, n.tensor(np.array([1, 2, 3]).astype(dtype)))

    try:
        call(pytorch())
    except (RuntimeError, NotImplementedError):
        return
    same_as_pytorch(call, rtol=2e-3 if dtype == "float16" else 1e-6)


@needs_torch
@pytest.mark.parametrize("name", ["max", "min", "amax", "amin", "norm"])
@pytest.mark.parametrize(
    "values", [[1, NAN, 3], [NAN, NAN, 1], [[1, NAN], [2, 2]], [2, 2, 0], NAN], ids=str
)
def test_gradients_of_extremes_of_nans(name: str, values: Any) -> None:
    """Those of all elements, and along an axis; norm is that of order 0."""
    calls = {"norm": [lambda t: t.norm(0), lambda t: t.norm(0, -1)]}
    if name.startswith("a"):
        calls[name] = [lambda t: getattr(t, name)(-1)]
    for call in (*calls.get(name, ()), *([lambda t: getattr(t, name)()] * (name != "norm"))):
        ours, theirs = (n.tensor(values, dtype=n.float32, requires_grad=True)
                        for n in (nnmpi, pytorch()))  # fmt: skip
        y, expected = call(ours), call(theirs)
        np.testing.assert_array_equal(y.tolist(), expected.tolist())
        y.sum().backward()
        expected.sum().backward()
        gradient = np.zeros(np.shape(values)) if theirs.grad is None else theirs.grad.numpy()
        np.testing.assert_array_equal(ours.grad, gradient)


@needs_torch
@pytest.mark.parametrize("name", ["smooth_l1_loss", "huber_loss", "binary_cross_entropy"])
@pytest.mark.parametrize("types", [("float32", "float64"), ("float64", "float16")], ids=str)
def test_a_loss_of_two_float_types(name: str, types: tuple[str, str]) -> None:
    """The value and the gradients are PyTorch's, or both refuse it."""
    found = []
    for n in (pytorch(), nnmpi):
        prediction, target = (
            n.tensor(values, dtype=getattr(n, dtype), requires_grad=True)
            for values, dtype in zip(([0.25, 0.75], [0.5, 1.0]), types, strict=True)
        )
        try:
            loss = getattr(n.nn.functional, name)(prediction, target)
            loss.backward()
        except (RuntimeError, TypeError) as error:
            found.append([str(error)])
        else:
            found.append([t.detach().numpy() for t in (loss, prediction.grad, target.grad)])
    theirs, ours = found
    if len(ours) == 1:
        assert "Found dtype" in theirs[0]
        assert re.search(r"prediction of \w+, target of .* target.to\(prediction.dtype\)", ours[0])
        with nnmpi.autocast("cpu", dtype=nnmpi.bfloat16):
            getattr(F, name)(of(types[0], 0.25, 0.75), of(types[1], 0.5, 1.0))
    else:
        for y, expected in zip(ours, theirs, strict=True):
            assert y.dtype == expected.dtype
            np.testing.assert_array_equal(y, expected)


@pytest.mark.parametrize("op", [operator.add, operator.mul, operator.truediv])
def test_integers_and_float32_are_float32_and_their_gradients_too(op: Any) -> None:
    labels, x = nnmpi.tensor([1, 2, 3]), nnmpi.tensor([1.0, 2.0, 4.0], requires_grad=True)
    y = op(labels, x)
    assert y.dtype == "float32"
    y.sum().backward()
    assert x.grad.dtype == "float32"
    assert (labels == x.detach()).numpy().tolist() == [True, True, False]
    assert (labels / 2).numpy().tolist() == [0.5, 1.0, 1.5]


def of(dtype: str, *values: Any) -> Any:
    """A tensor of this dtype: a 0-d one of one number, otherwise of the lists `values`."""
    return nnmpi.tensor(values[0] if len(values) == 1 else [*values]).to(dtype)


SMALL = of("int8", [100, 100], [100, 3])
VALUES: dict[str, tuple[Callable[[], Any], str, Any]] = {
    "einsum of a whole sum": (lambda: nnmpi.einsum("ij->", SMALL), "int64", 303),
    "einsum of sums of rows": (lambda: nnmpi.einsum("ij->i", SMALL), "int64", [200, 103]),
    "einsum of a product": (lambda: nnmpi.einsum("ij,ij->i", SMALL, SMALL), "int8", [32, 25]),
    "einsum with a letter alone": (
        lambda: nnmpi.einsum("ij,k->i", SMALL, of("int8", 2, 1)), "int64", [600, 309]
    ),
    "einsum of a transpose": (
        lambda: nnmpi.einsum("ij->ji", SMALL), "int8", [[100, 100], [100, 3]]
    ),
    "logsumexp": (
        lambda: nnmpi.logsumexp(of("uint8", [1, 200], [3, 4]), 0), "float32", [3.126928, 200]
    ),
    "l1_loss": (
        lambda: F.l1_loss(of("uint8", 1, 200), of("int16", 3, 5), reduction="none"),
        "int16", [2, 195],
    ),
    "l1_loss of integers and floats": (
        lambda: F.l1_loss(of("uint8", 1, 200), of("float32", 1.5, 5.0), reduction="sum"),
        "float32", 195.5,
    ),
    "pairwise distance": (
        lambda: F.pairwise_distance(of("int64", [1, 2], [0, 0]), of("int64", [1, 3], [1, 1])),
        "float32", [0.999999, 1.4142122],
    ),
    "any": (lambda: of("uint8", [0, 2], [0, 0]).any(0), "uint8", [0, 1]),
    "all": (lambda: of("uint8", [3, 2], [3, 0]).all(), "uint8", 0),
    "relu6": (lambda: F.relu6(of("int8", -3, 5, 9)), "int8", [0, 5, 6]),
    "hardtanh": (lambda: F.hardtanh(of("int64", -3, 5, 9), -2, 6), "int64", [-2, 5, 6]),
    "clamp from an array": (
        lambda: of("float32", NAN, 1.0, 2.0, NAN).clamp(min=of("float32", 1.0, NAN, 3.0, NAN)),
        "float32", [NAN, NAN, 3, NAN],
    ),
    "clamp to an array": (
        lambda: of("float32", NAN, 1.0, 2.0).clamp(max=of("float32", 1.0, NAN, 1.0)),
        "float32", [NAN, NAN, 1],
    ),
    "clamp of integers to a float": (
        lambda: of("int64", 1, 5).clamp(max=of("float32", 1.5)), "float32", [1, 1.5]
    ),
    "clamp the wrong way round": (
        lambda: of("int64", 1, 5, 9).clamp(of("int64", 4), of("int64", 3)), "int64", [3, 3, 3]
    ),
    "unique NaNs": (lambda: nnmpi.unique(of("float32", NAN, 1.0, NAN)), "float32", [1, NAN, NAN]),
    "sign of NaN": (lambda: nnmpi.sign(of("float32", NAN, -2.0, 0.0)), "float32", [0, -1, 0]),
    "square of booleans": (lambda: nnmpi.square(of("bool", 1, 0)), "int64", [1, 0]),
    "cumsum without axes": (lambda: of("int8", 3).cumsum(0), "int64", 3),
    "any over no axis": (lambda: of("int64", [3, 0], [0, 0]).any(dim=()), "bool", [[1, 0], [0, 0]]),
    "booleans times alpha": (
        lambda: of("int32", 1, 2).add(of("bool", 1, 0), alpha=2), "int32", [3, 2]
    ),
    "booleans times alpha, less": (
        lambda: of("int8", 1, 2).sub(of("bool", 1, 0), alpha=2), "int8", [-1, 2]
    ),
    "distance of bytes": (
        lambda: F.pairwise_distance(of("uint8", [1, 2]), of("uint8", [2, 2])), "float32", 255.0
    ),
    "loss of float64": (
        lambda: F.mse_loss(of("float32", 1.0, 2.0), of("float64", 0.5, 2.0)), "float64", 0.125
    ),
    "loss of an array of float64": (
        lambda: F.mse_loss(of("float32", 1.0, 2.0), np.array([0.5, 2])), "float32", 0.125
    ),
    "loss of probabilities of float64": (
        lambda: F.cross_entropy(of("float32", [0, 0], [0, 0]), of("float64", [1, 0], [0, 1])),
        "float64", np.log(2),
    ),
    "largest number of float16": (
        lambda: nnmpi.nan_to_num(of("float16", NAN, -np.inf)), "float16", [0, -65504]
    ),
    "int64 in uint8": (lambda: of("uint8", 1, 2).add_(of("int64", 3, 4)), "uint8", [4, 6]),
    "a power in place": (lambda: of("int8", 2, 3).__ipow__(of("int64", 2, 2)), "int8", [4, 9]),
}  # fmt: skip


@pytest.mark.parametrize("name", VALUES)
def test_integers_and_nans_give_pytorchs_values_and_types(name: str) -> None:
    call, dtype, expected = VALUES[name]
    y = call()
    assert y.dtype == dtype
    np.testing.assert_allclose(y.numpy(), expected, rtol=1e-6)
    assert y.shape == np.shape(expected)


@pytest.mark.skipif(not has_bfloat16(), reason="needs ml_dtypes")
def test_16_bit_types_meet_as_in_pytorch() -> None:
    half, brain = of("float16", [1.5, 2.5]), of("bfloat16", [2.0, 4.0])
    for y, dtype in (
        (half[0] + brain[0], "float32"),
        (half + brain[0], "float16"),
        (half[0] * brain, "bfloat16"),
        (half - brain, "float32"),
        (nnmpi.cat([half, brain]), "float32"),
    ):
        assert y.dtype == dtype
    assert (half - brain).tolist() == [-0.5, -1.5]
    assert (half + brain[0]).tolist() == [3.5, 4.5]
    for loss in (F.smooth_l1_loss, F.huber_loss, F.binary_cross_entropy_with_logits):
        assert loss(brain, brain / 4).dtype == "bfloat16"
    assert nnmpi.nan_to_num(of("bfloat16", [np.inf, -np.inf])).isfinite().all()


def test_losses_of_two_types_give_gradients_of_their_inputs_types() -> None:
    x, y = (of(dtype, 1.0, 2.0).requires_grad_() for dtype in ("float32", "float64"))
    F.l1_loss(x, 2 * y).backward()
    assert (x.grad.dtype, x.grad.tolist()) == ("float32", [-0.5, -0.5])
    assert (y.grad.dtype, y.grad.tolist()) == ("float64", [1.0, 1.0])


def test_what_is_drawn_by_probabilities_has_a_gradient_of_0() -> None:
    p = of("float32", 0.0, 1.0).requires_grad_()
    y = nnmpi.bernoulli(p)
    y.sum().backward()
    assert (y.tolist(), p.grad.tolist()) == ([0, 1], [0, 0])


@pytest.mark.parametrize(
    ("name", "call"), {"floor_divide": lambda x: x // 2, "unique": nnmpi.unique}.items()
)
def test_what_has_no_derivative_keeps_requires_grad(name: str, call: Callable[[Any], Any]) -> None:
    x = nnmpi.tensor([1.0, 2.0, 1.0], requires_grad=True)
    y = call(x)
    assert y.requires_grad
    with pytest.raises(RuntimeError, match=f"{name} has no gradient, in PyTorch neither"):
        (y.sum() + x.sum()).backward()
    assert not call(x.detach()).requires_grad


@pytest.mark.parametrize(
    ("values", "gradient"),
    [([3.0, 1.0, 2.0, 2.0], [0, 0, 0.5, 0.5]), ([1.0, NAN, 5.0, NAN], [0, 0.5, 0, 0.5])],
)
def test_equal_elements_share_the_gradient_of_the_median(
    values: list[float], gradient: list[float]
) -> None:
    x = nnmpi.tensor(values, requires_grad=True)
    x.median().backward()
    assert x.grad.tolist() == gradient
    x.grad = None
    x.median(0).values.backward()  # along an axis the first of them gets it
    assert x.grad.tolist() == [
        float(g > 0 and k == gradient.index(g)) for k, g in enumerate(gradient)
    ]
