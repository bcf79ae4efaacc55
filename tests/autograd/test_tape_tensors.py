"""Tensors: construction, constants, comparisons, and what they refuse."""

import operator

import numpy as np
import pytest
from helpers.device import DEVICE, ON_DEVICE, needs_device

import nnmpi
from nnmpi.arrays.backend import CPU, to_host
from nnmpi.autograd import Tensor, apply
from nnmpi.autograd.check import directional_error
from nnmpi.autograd.ops import linear

FLOATS = ("float32", "float64")


def leaf(*shape: int, dtype: str = "float64") -> Tensor:
    data = np.random.default_rng(shape).uniform(0.5, 2, shape).astype(dtype)
    return Tensor(data, requires_grad=True)


# ---- construction


@pytest.mark.parametrize(
    ("value", "dtype"),
    [
        (1.5, "float32"),
        ([1.5, 2.5], "float32"),
        ([[1, 2], [3, 4]], "int64"),
        (True, "bool"),
        (np.float64(1.5), "float64"),
        (np.arange(3, dtype="uint8"), "uint8"),
        (Tensor(np.ones(2, "float64")), "float64"),
    ],
    ids=repr,
)
def test_tensor_copies_and_keeps_the_type_of_arrays(value, dtype):
    t = nnmpi.tensor(value)
    assert type(t.array) is np.ndarray
    assert t.dtype == dtype
    assert not t.requires_grad
    if isinstance(value, np.ndarray | Tensor):
        assert not np.shares_memory(t.array, getattr(value, "numpy", lambda: value)())


@needs_device
def test_tensor_copies_to_a_device_and_from_it():
    for value in ([[1, 2], [3, 4]], np.ones((2, 2)), DEVICE.xp.ones((2, 2), "float32")):
        here, there = nnmpi.tensor(value), nnmpi.tensor(value, "float64", on=DEVICE)
        assert type(here.array) is np.ndarray
        assert type(there.array) is DEVICE.xp.ndarray
        assert there.dtype == "float64"
        assert (there.numpy() == here.numpy()).all()


@pytest.mark.parametrize("value", [None, "1.5", [1, None], object(), 1j, {1: 2}])
def test_a_tensor_holds_real_numbers(value):
    with pytest.raises(TypeError, match="holds real numbers"):
        nnmpi.tensor(value)
    with pytest.raises(TypeError):
        leaf(2) + value


def test_only_floating_point_tensors_have_gradients():
    for values in (np.arange(3), np.array([True])):
        with pytest.raises(ValueError, match=f"this is {values.dtype}"):
            Tensor(values, requires_grad=True)
    t = leaf(3)
    for whole in (t.astype("int64"), t.argmax(), t > 1):
        assert not whole.requires_grad
    assert t.astype("float32").requires_grad


def test_conversions_to_python_values():
    t = nnmpi.tensor([[1.5, 2.5]])
    assert (t.shape, t.ndim, t.size, len(t)) == ((1, 2), 2, 2, 1)
    assert [row.numpy().tolist() for row in t] == [[1.5, 2.5]]
    assert (t[0, 1].item(), float(t[0, 1]), int(t[0, 1]), bool(t[0, 1] > 2)) == (2.5, 2.5, 2, True)
    assert repr(t) == "tensor([[1.5, 2.5]])"
    assert repr(leaf(0)) == "tensor([], requires_grad=True)"
    assert t.numpy() is t.array


# ---- constants as operands

OPERATORS = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "/": operator.truediv,
    "**": operator.pow,
    "maximum": nnmpi.maximum,
    "minimum": nnmpi.minimum,
}
NUMBERS = (2, 2.5, True, np.float64(2.5), np.float32(2.5), np.int64(2), np.bool_(True))


def numpys(f):
    """The same function of NumPy."""
    return getattr(np, f.__name__) if f in (nnmpi.maximum, nnmpi.minimum) else f


@pytest.mark.parametrize("f", OPERATORS.values(), ids=OPERATORS)
@pytest.mark.parametrize("dtype", FLOATS)
def test_scalars_do_not_promote_types(f, dtype):
    t = leaf(2, 3, dtype=dtype)
    for number in NUMBERS:
        for a, b in ((t, number), (number, t)):
            y = f(a, b)
            expected = numpys(f)(*(v.array if v is t else np.asarray(v).item() for v in (a, b)))
            assert y.dtype == dtype
            assert (y.numpy() == expected).all()
            t.grad_array = None
            y.sum().backward()
            assert t.grad_array.dtype == dtype
            assert t.grad_array.shape == t.shape


@pytest.mark.parametrize("f", [*OPERATORS.values(), operator.matmul], ids=[*OPERATORS, "@"])
@pytest.mark.parametrize("on", [pytest.param(CPU, id="NumPy"), ON_DEVICE])
def test_arrays_may_be_either_operand(f, on):
    make, t, constant = on.asarray, leaf(3, 3), np.random.default_rng(0).uniform(0.5, 2, (3, 3))
    t = Tensor(make(t.array), requires_grad=True)
    for a, b in ((t, make(constant)), (make(constant), t)):
        y = f(a, b)
        assert type(y) is Tensor
        assert y.requires_grad
        expected = numpys(f)(*(to_host(v.array if v is t else v) for v in (a, b)))
        np.testing.assert_allclose(y.numpy(), expected, rtol=1e-14)
        y.sum().backward()
        assert type(t.grad_array) is type(t.array)


@needs_device
def test_host_constants_move_to_the_device():
    t = Tensor(DEVICE.asarray(np.array([1.0, 2.0])), requires_grad=True)
    rows = np.array([[1.0, 2.0], [3.0, 4.0]])
    y = (rows * t + [1, 2]) @ rows + nnmpi.where(np.array([True, False]), t, np.zeros(2))
    assert type(y.array) is DEVICE.xp.ndarray
    assert y.numpy().tolist() == ((rows * [1, 2] + [1, 2]) @ rows + [1, 0]).tolist()


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("other", [*FLOATS, "int64"])
def test_a_gradient_has_the_type_of_its_data(dtype, other):
    for shape in ((), (2,), (2, 2)):
        a = leaf(*shape, dtype=dtype)
        b = Tensor(np.ones((2, 2), other))
        for _ in range(2):  # the first contribution, and one that is added
            (a * b).sum().backward()
            (b * a.astype("float64")).sum().backward(np.ones((), "float64"))
        assert type(a.grad_array) is np.ndarray
        assert (a.grad_array.dtype, a.grad_array.shape) == (dtype, shape)
        assert a.grad_array.tolist() == np.full(shape, 16.0 / a.size).tolist()


@pytest.mark.parametrize(
    "compare", [operator.eq, operator.ne, operator.lt, operator.le, operator.gt, operator.ge]
)
def test_comparisons_are_numpys(compare):
    a, b = np.array([1.0, 2.0, 3.0]), np.array([3.0, 2.0, 1.0])
    t = Tensor(a, requires_grad=True)
    for other in (2, 2.0, np.float32(2), b, Tensor(b), [3, 2, 1]):
        for left, right in ((t, other), (other, t)):
            y = compare(left, right)
            values = [v.array if isinstance(v, Tensor) else v for v in (left, right)]
            assert type(y) is Tensor
            assert y.dtype == bool
            assert not y.requires_grad
            assert (y.numpy() == compare(np.asarray(values[0]), np.asarray(values[1]))).all()


ARITHMETIC = (
    *(operator.add, operator.sub, operator.mul, operator.truediv, operator.floordiv),
    *(operator.mod, operator.pow, operator.matmul),
)
BITWISE = operator.and_, operator.or_, operator.xor


@pytest.mark.parametrize(("dtype", "ops"), [("float64", ARITHMETIC), ("int64", BITWISE)])
def test_an_operator_with_an_array_on_the_left_is_that_of_tensors(dtype, ops):
    a, b = np.array([[1, 2], [0, 3]]).astype(dtype), np.array([[1, 1], [1, 2]]).astype(dtype)
    for op in ops:
        y = op(a, Tensor(b))
        assert type(y) is Tensor, op
        assert (y.numpy() == op(a, b)).all(), op


def test_tensors_are_keys_by_identity():
    a, b = leaf(2), leaf(2)
    assert {a: 1, b: 2}[b] == 2
    with pytest.raises(ValueError, match="ambiguous"):
        bool(a == b)


# ---- composites

COMPOSITES = {
    "var": (lambda t: t.var(ddof=0), lambda a: a.var()),
    "var of rows": (lambda t: t.var(axis=-1, keepdims=True), lambda a: a.var(-1, keepdims=True)),
    "stack": (lambda t: nnmpi.stack([t, t * 2], 1), lambda a: np.stack([a, a * 2], 1)),
    "stack last": (lambda t: nnmpi.stack([t, t * 2], -1), lambda a: np.stack([a, a * 2], -1)),
    "expand_dims": (lambda t: nnmpi.expand_dims(t, -1), lambda a: np.expand_dims(a, -1)),
    "swapaxes": (lambda t: nnmpi.swapaxes(t, 0, -1), lambda a: np.swapaxes(a, 0, -1)),
    "broadcast_to": (
        lambda t: nnmpi.broadcast_to(t, (2, 3, 4)),
        lambda a: np.broadcast_to(a, (2, 3, 4)),
    ),
    "T": (lambda t: t.T, lambda a: a.T),
    "abs": (abs, np.abs),
    "clip": (lambda t: nnmpi.clip(t, max=1), lambda a: np.clip(a, None, 1)),
    "reshape": (lambda t: t.reshape(2, -1), lambda a: a.reshape(2, -1)),
    "reshape to a tuple": (lambda t: t.reshape((6, 2)), lambda a: a.reshape(6, 2)),
    "reshape to NumPy's integer": (lambda t: t.reshape(np.int64(12)), lambda a: a.reshape(12)),
    "transpose": (lambda t: t.transpose(1, 0), lambda a: a.transpose(1, 0)),
    "index": (lambda t: t[Tensor(np.array([2, 0, 2]))], lambda a: a[[2, 0, 2]]),
    "index of two": (lambda t: t[:, Tensor(np.array([2, 2]))], lambda a: a[:, [2, 2]]),
}


@pytest.mark.parametrize(("f", "numpys"), COMPOSITES.values(), ids=COMPOSITES)
def test_composites_are_numpys_and_have_gradients(f, numpys):
    a = leaf(3, 4).array
    assert (f(Tensor(a)).numpy() == numpys(a)).all()
    assert directional_error(f, a) < 1e-6


# ---- products, and errors


@pytest.mark.parametrize(
    "f", [operator.matmul, nnmpi.matmul, nnmpi.bmm], ids=["@", "matmul", "bmm"]
)
def test_stacks_of_matrices_that_do_not_fit_are_told_as_a_product(f):
    with pytest.raises(ValueError, match=r"\Amatmul: shapes [^\n]+ do not fit: the axes before"):
        f(leaf(2, 2, 3), leaf(4, 3, 2))
    for a, b in (((2, 2, 3), (1, 3, 2)), ((5, 1, 2, 3), (4, 3, 2)), ((2, 3), (4, 3, 2))):
        x, y = leaf(*a), leaf(*b)
        np.testing.assert_allclose(f(x, y).array, x.array @ y.array)


def test_einsum_broadcasts_an_axis_of_length_1_by_its_letter() -> None:
    rng = np.random.default_rng(0)
    a = nnmpi.tensor(rng.random((2, 3)), requires_grad=True)
    b = nnmpi.tensor(rng.random((2, 1)), requires_grad=True)
    nnmpi.einsum("ij,ij->i", a, b).sum().backward()
    np.testing.assert_allclose(a.grad_array, np.broadcast_to(b.array, (2, 3)))
    np.testing.assert_allclose(b.grad_array, a.array.sum(1, keepdims=True))


@pytest.mark.parametrize("mode", ["reflect", "replicate", "circular"])
def test_an_empty_batch_is_padded(mode: str) -> None:
    x = nnmpi.tensor(np.zeros((0, 3, 4, 4)))
    assert nnmpi.pad(x, (1, 1, 2, 2), mode).shape == (0, 3, 8, 6)


@pytest.mark.parametrize("order", ["C", "F"])
def test_gradients_of_products_have_one_value_in_any_memory(order: str) -> None:
    """To the bit: a gradient is written to where it stays, and BLAS may add up otherwise there."""
    rng = np.random.default_rng(0)
    x, w, g = (rng.standard_normal(s).astype("float32") for s in ((32, 30), (30, 200), (32, 200)))
    parameter = Tensor(np.array(w, order=order), requires_grad=True)
    (nnmpi.tensor(x) @ parameter).backward(g)
    assert parameter.grad_array is not None
    assert parameter.grad_array.strides == parameter.array.strides
    np.testing.assert_array_equal(parameter.grad_array, x.T @ g)


def test_a_leaf_in_fortran_order_gets_its_gradient() -> None:
    x = np.arange(8, dtype="float32").reshape(2, 4)
    w = nnmpi.from_numpy(np.ones((3, 4), "float32", order="F")).requires_grad_()
    apply(linear.linear, Tensor(x), w, None).sum().backward()
    assert w.grad is not None
    assert w.grad.tolist() == [x.sum(0).tolist()] * 3
