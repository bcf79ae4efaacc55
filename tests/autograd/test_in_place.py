"""`p.data` and `p.grad` as tensors in the memory of a parameter, and methods that write."""

import operator
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from helpers.ops.oracle import needs_torch, same_as_pytorch

import nnmpi
from nnmpi import nn
from nnmpi.utils.checkpoint import checkpoint

X = np.arange(6.0).reshape(2, 3) - 2.5


def bytes_of(n: Any) -> Any:
    return n.tensor([7, 6], dtype=n.uint8)


def after(t: Any, write: Callable[[Any], Any]) -> Any:
    """The tensor, after a write to it."""
    write(t)
    return t


WRITES: dict[str, Callable[[Any, Any], Any]] = {
    "mul_": lambda n, t: t.mul_(2),
    "add_": lambda n, t: t.add_(1, alpha=3),
    "sub_": lambda n, t: t.sub_(t * 2, alpha=0.5),
    "div_": lambda n, t: t.div_(2),
    "clamp_": lambda n, t: t.clamp_(min=0),
    "clamp_ both": lambda n, t: t.clamp_(-1, 1),
    "clamp_min_ and max": lambda n, t: t.clamp_min_(-1).clamp_max_(1),
    "zero_": lambda n, t: t.zero_(),
    "fill_": lambda n, t: t.fill_(3),
    "floor_": lambda n, t: t.floor_(),
    "ceil_ and round_": lambda n, t: t.div_(3).round_().add_(0.5).ceil_(),
    "floor_ of integers": lambda n, t: t.long().floor_(),
    "fill_diagonal_": lambda n, t: t.fill_diagonal_(9),
    "fill_diagonal_ wraps": lambda n, t: n.zeros(7, 2).fill_diagonal_(4, wrap=True),
    "fill_diagonal_ of a cube": lambda n, t: n.zeros(3, 3, 3).fill_diagonal_(4),
    "masked_fill_": lambda n, t: t.masked_fill_(t > 0, 7.0),
    "relu_": lambda n, t: t.relu_(),
    "copy_": lambda n, t: t.copy_(n.ones(3)),
    "functions": lambda n, t: t.abs_().sqrt_().exp_().log_().pow_(3).neg_(),
    "curves": lambda n, t: t.sin_().cos_().tanh_().sigmoid_().remainder_(0.3),
    "addcmul_": lambda n, t: t.addcmul_(t, t, value=2),
    "addcdiv_": lambda n, t: t.addcdiv_(t, t + 9, value=2),
    "lerp_": lambda n, t: t.lerp_(t * 3, 0.3),
    "a row": lambda n, t: (t[0].mul_(2), t)[1],
    "data": lambda n, t: (t.data.mul_(2), t)[1],
    "a transpose": lambda n, t: (t.T.add_(2), t)[1],
    "integers": lambda n, t: t.long().add_(2),
    "tile, once": lambda n, t: n.stack([t.tile(1, 1).mul_(2), t]),
    "repeat of one element": lambda n, t: after(t[0, :1].repeat(4), lambda y: y[1:].mul_(2)),
    "expand to its own shape": lambda n, t: (t.expand(2, 3).mul_(2), t)[1],
    "einsum of 16 bits as a view": lambda n, t: after(
        t.bfloat16(), lambda h: n.einsum("ij->ji", h).mul_(2)
    ).float(),
    "bytes wrap around": lambda n, t: after(bytes_of(n), lambda b: b.__setitem__(0, -2)),
    "bytes filled": lambda n, t: after(bytes_of(n), lambda b: b.fill_(-255)),
    "bytes by a mask": lambda n, t: after(bytes_of(n), lambda b: b.masked_fill_(b > 6, -1)),
    "bytes *=": lambda n, t: after(bytes_of(n), lambda b: operator.imul(b, -1)),
}


@needs_torch
@pytest.mark.parametrize("write", WRITES.values(), ids=WRITES)
def test_writes_are_pytorchs(write: Any) -> None:
    same_as_pytorch(lambda n: write(n, n.tensor(X)))


AUGMENTED: dict[str, tuple[Callable[[Any, Any], Any], Any, Any, list[float]]] = {
    "+=": (operator.iadd, [7, 6], 2, [9, 8]),
    "-=": (operator.isub, [7, 6], [3, 9], [4, -3]),
    "*=": (operator.imul, [7, 6], 2, [14, 12]),
    "/=": (operator.itruediv, [7.0, 6.0], 2, [3.5, 3]),
    "//=": (operator.ifloordiv, [7, -6], 4, [1, -2]),
    "%=": (operator.imod, [7, -6], 4, [3, 2]),
    "**=": (operator.ipow, [7, 6], 2, [49, 36]),
    "**= of floats": (operator.ipow, [2.0, 3.0], [2.0, -1.0], [4, 1 / 3]),
    "&=": (operator.iand, [7, 6], [3, 9], [3, 0]),
    "|=": (operator.ior, [7, 6], [3, 9], [7, 15]),
    "^=": (operator.ixor, [7, 6], [3, 9], [4, 15]),
    "&= of masks": (operator.iand, [True, True], [False, True], [0, 1]),
    "<<=": (operator.ilshift, [7, -6], 2, [28, -24]),
    ">>=": (operator.irshift, [7, -6], [1, 1], [3, -3]),
}


@pytest.mark.parametrize("name", AUGMENTED)
def test_augmented_assignments_write_in_place(name: str) -> None:
    op, start, other, expected = AUGMENTED[name]
    x = nnmpi.tensor([*start, *start])
    y = x[:2]
    result = op(y, nnmpi.tensor(other) if isinstance(other, list) else other)
    assert result is y
    np.testing.assert_allclose(x.tolist(), [*expected, *start], rtol=1e-7)


WRITES_OF_FRACTIONS: dict[str, Callable[[Any], Any]] = {
    "mul_": lambda t: t.mul_(0.5),
    "+=": lambda t: t.__iadd__(0.5),
    "/=": lambda t: t.__itruediv__(0.5),
}


@pytest.mark.parametrize("write", WRITES_OF_FRACTIONS.values(), ids=WRITES_OF_FRACTIONS)
def test_integers_are_not_truncated(write: Callable[[Any], Any]) -> None:
    t = nnmpi.tensor([1, 2, 3])
    assert t.mul_(2) is t
    with pytest.raises(TypeError, match="a int64 tensor cannot take float32 results in place"):
        write(t)
    assert t.tolist() == [2, 4, 6]


def test_integers_take_no_gradient() -> None:
    w, counts = nnmpi.tensor([1.7], requires_grad=True), nnmpi.zeros(3, dtype="int64")
    with pytest.raises(RuntimeError, match=r"in place.*make a new tensor, or write under"):
        counts[0] = w[0]
    assert not counts.requires_grad
    with nnmpi.no_grad():
        counts[0] = w[0]


def test_data_and_grad_are_tensors_in_the_memory_of_a_parameter() -> None:
    for p in (nn.Parameter(np.array([3.0, -4.0])), nnmpi.tensor(np.array([3.0, -4.0]), None)):
        p.requires_grad_()
        assert p.grad is None
        (p * p).sum().backward()
        assert type(p.grad) is nnmpi.Tensor
        assert not p.grad.requires_grad
        p.grad.data.clamp_(-6, 6)
        p.grad.mul_(0.5)
        p.grad += 1
        p.grad[0] = 0
        assert np.asarray(p.grad).tolist() == [0, -2]
        assert (np.abs(p.grad).max(), np.linalg.norm(p.grad), np.sum(p.grad)) == (2, 2, -2)
        p.data.mul_(0.5).sub_(p.grad)
        p.data[0].fill_(9)
        p.data -= 1
        assert p.tolist() == [8, -1]
        assert p.requires_grad
        assert not p.data.requires_grad
        assert np.shares_memory(np.asarray(p.data), p.array)
        p.data, p.grad = nnmpi.ones(2), nnmpi.zeros(2)
        assert (p.tolist(), p.grad.tolist()) == ([1, 1], [0, 0])


def test_a_write_to_data_is_unknown_to_the_tape_as_in_pytorch() -> None:
    p = nn.Parameter(np.ones(2, "float32"))
    y = (p * p).sum()
    p.data.fill_(4)
    p.data.reshape(-1).add_(1)  # by a view too
    y.backward()
    assert p.grad.tolist() == [10, 10]


def test_data_is_initialised_as_the_parameter_is() -> None:
    found = []
    for weight in (lambda m: m.weight, lambda m: m.weight.data):
        with nnmpi.seeded(3):
            model = nn.Sequential(nn.Linear(3, 2))
            nn.init.normal_(weight(model[0]), 0.0, 0.02)
            nn.init.kaiming_uniform_(weight(model[0]))
        found.append(model[0].weight.tolist())
    assert found[0] == found[1]


def test_values_that_were_written_have_no_seed() -> None:
    layer = nn.Linear(2, 2)
    layer.weight.data.fill_(1)
    assert layer.weight.seed is None
    with nnmpi.no_grad():
        layer.bias.zero_()
    assert layer.bias.seed is None


def test_random_writes_follow_from_a_generator_or_from_the_number_before() -> None:
    g = nnmpi.Generator().manual_seed(7)
    first = [nnmpi.zeros(50).normal_(1, 2, generator=g), nnmpi.randn(3, generator=g)]
    g.manual_seed(7)
    assert (nnmpi.zeros(50).normal_(1, 2, generator=g) == first[0]).all()
    assert (nnmpi.randn(3, generator=g) == first[1]).all()
    assert g.initial_seed() == 7
    state = g.get_state()
    drawn = nnmpi.rand(3, generator=g), nnmpi.randperm(5, generator=g)
    g.set_state(state)
    assert (nnmpi.rand(3, generator=g) == drawn[0]).all()
    assert (nnmpi.randperm(5, generator=g) == drawn[1]).all()
    with nnmpi.seeded(1):
        u = nnmpi.zeros(2000).uniform_(-1, 3)
        b = nnmpi.zeros(2000).bernoulli_(0.25)
        e = nnmpi.zeros(2000).exponential_(2.0)
        ones = nnmpi.bernoulli(nnmpi.full((2000,), 0.25))
    assert -1 < float(u.min()) < -0.9 < 2.9 < float(u.max()) < 3
    assert 0.2 < float(b.mean()) < 0.3
    assert set(ones.tolist()) == {0, 1}
    assert 0.45 < float(e.mean()) < 0.55
    assert not (ones == b).all()


def test_ufuncs_write_into_arrays_and_tensors() -> None:
    a, t = np.ones(3), nnmpi.tensor([1.0, 2.0, 3.0])
    memory = a
    a -= t
    assert a is memory
    assert a.tolist() == [0, -1, -2]
    assert np.add(t, 1, out=t) is t
    assert t.tolist() == [2, 3, 4]
    assert type(np.sqrt(t)) is np.ndarray
    total = np.zeros(3)
    total += t.requires_grad_()
    assert total.requires_grad
    with pytest.raises(TypeError, match=r"numpy\.exp would lose the gradient"):
        np.exp(t)


def test_a_constant_in_a_graph_keeps_its_old_value_there() -> None:
    w, c = nnmpi.tensor([2.0], requires_grad=True), nnmpi.tensor([3.0])
    y = w * c
    c += w.double()
    (y + c).backward()
    assert (c.item(), w.grad.item(), c.dtype) == (5, 4, "float32")


def test_a_checkpoint_that_runs_again_on_what_was_written_is_refused() -> None:
    class Model(nn.Module):
        def forward(self, a: Any) -> Any:
            return checkpoint(lambda b: b * b, a)

    x = nnmpi.tensor(X, requires_grad=True) * 1.5
    y = Model()(x)
    x.relu_()
    with pytest.raises(RuntimeError, match="written in place after the forward pass"):
        y.sum().backward()


@pytest.mark.parametrize("needs_gradient", [False, True])
@pytest.mark.parametrize("shape", [(), (1,), (1, 1)])
def test_one_element_is_written_into_one_place(
    shape: tuple[int, ...], needs_gradient: bool
) -> None:
    w = nnmpi.ones(*shape, requires_grad=needs_gradient) if shape else nnmpi.tensor(1.0)
    w.requires_grad = needs_gradient
    found = nnmpi.zeros(3)
    found[1] = w
    assert found.tolist() == [0.0, 1.0, 0.0]
    if needs_gradient:
        (found * 2.0).sum().backward()
        assert (w.grad.shape, w.grad.item()) == (shape, 2.0)


OPERATORS = [operator.iadd, operator.isub, operator.imul, operator.itruediv]
OPERANDS: dict[str, Callable[[Any, Any], Any]] = {
    "a number": lambda n, t: 0.3,
    "an integer": lambda n, t: 3,
    "a tensor": lambda n, t: t.clone() + 2,
    "itself": lambda n, t: t,
    "a row": lambda n, t: t[1].clone(),
    "one element": lambda n, t: t[1, 1].clone(),
    "float64": lambda n, t: n.tensor(X),
    "integers": lambda n, t: n.tensor([1, 2, 3]),
}


@needs_torch
@pytest.mark.parametrize("operand", OPERANDS.values(), ids=OPERANDS)
@pytest.mark.parametrize("write", OPERATORS)
def test_operators_in_place_have_the_bits_of_pytorchs(write: Any, operand: Any) -> None:
    def program(n: Any) -> Any:
        t = n.tensor(X.astype("float32"))
        views = t.view(-1), t.T
        assert write(t, operand(n, t)) is t
        return t, *views

    same_as_pytorch(program, rtol=0, atol=0)


@pytest.mark.parametrize("write", OPERATORS)
def test_operators_in_place_refuse_what_does_not_fit(write: Any) -> None:
    row, repeated = nnmpi.ones(3), nnmpi.ones(1).expand(3)
    with pytest.raises(ValueError, match=r"\(3,\) cannot take a result of shape \(2, 3\)"):
        write(row, nnmpi.ones(2, 3))
    with pytest.raises(RuntimeError, match="lie in one place"):
        write(repeated, 2.0)
    w = nnmpi.ones(3, requires_grad=True)
    y = row * w
    write(row, 2.0)
    with pytest.raises(RuntimeError, match="written in place"):
        y.sum().backward()


def test_an_operand_in_the_same_memory_is_read_first() -> None:
    t = nnmpi.tensor(X.astype("float32"))
    t += t[1]
    np.testing.assert_array_equal(t.numpy(), (X + X[1]).astype("float32"))
