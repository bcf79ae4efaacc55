"""`autograd.grad` and `autograd.Function`."""

from typing import Any

import numpy as np
import pytest
from helpers.ops.oracle import needs_torch, same_as_pytorch

import nnmpi
from nnmpi import nn


def leaf(*values: float) -> nnmpi.Tensor:
    return nnmpi.tensor(np.array(values, "float64"), requires_grad=True)


# ---- grad


def test_gradients_are_results_and_leaves_keep_theirs() -> None:
    x, w = leaf(1, 2), nn.Parameter(np.array([3.0, 4.0]))
    (w * 7).sum().backward()
    h = x * w
    loss = (h * h).sum()
    dx, dw = nnmpi.autograd.grad(loss, (x, w), retain_graph=True)
    assert (dx.tolist(), dw.tolist()) == ([18, 64], [6, 32])
    assert (x.grad, w.grad.tolist()) == (None, [7, 7])
    dh, dx = nnmpi.autograd.grad(loss, [h, x], retain_graph=True)
    assert (dh.tolist(), dx.tolist()) == ([6, 16], [18, 64])
    (dx,) = nnmpi.autograd.grad([h, loss], x, grad_outputs=[nnmpi.ones(2), None])
    assert dx.tolist() == [21, 68]
    with pytest.raises(RuntimeError, match=r"retain_graph"):
        loss.backward()


def test_what_grad_refuses() -> None:
    x, y = leaf(1, 2), leaf(1)
    with pytest.raises(RuntimeError, match=r"input 1, of shape .* allow_unused=True"):
        nnmpi.autograd.grad((x * 2).sum(), (x, y))
    assert nnmpi.autograd.grad((x * 2).sum(), (x, y), allow_unused=True)[1] is None
    with pytest.raises(ValueError, match="not a scalar: pass grad_outputs"):
        nnmpi.autograd.grad(x * 2, x)
    with pytest.raises(RuntimeError, match="requires no gradient"):
        nnmpi.autograd.grad(x.sum(), x.detach())
    with pytest.raises(TypeError, match="create_graph"):
        nnmpi.autograd.grad(x.sum(), x, create_graph=True)


# ---- Function


def functions(library: Any) -> dict[str, Any]:
    """The same functions in both libraries."""

    class Exp(library.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            y = x.exp()
            ctx.save_for_backward(y)
            return y

        @staticmethod
        def backward(ctx, g):
            (y,) = ctx.saved_tensors
            return g * y

    class Scaled(library.autograd.Function):
        """Of several arguments, one of which is a number, with other gradients than it has."""

        @staticmethod
        def forward(ctx, x, factor, w):
            ctx.factor = factor
            ctx.save_for_backward(x, w)
            return x * factor + w

        @staticmethod
        def backward(ctx, g):
            assert ctx.needs_input_grad == (True, False, True)
            _, w = ctx.saved_tensors
            return g * ctx.factor * 10, None, (g * w)

    class Both(library.autograd.Function):
        """Of several results, the last of which has no gradient."""

        @staticmethod
        def forward(ctx, x):
            places = x.argmax()
            ctx.mark_non_differentiable(places)
            ctx.save_for_backward(x)
            return x * 2, x.sum(), places

        @staticmethod
        def backward(ctx, g, total, nothing):
            (x,) = ctx.saved_tensors
            return g * 2 + total * x

    class Later(library.autograd.Function):
        @staticmethod
        def forward(x, y):
            return x * y

        @staticmethod
        def setup_context(ctx, inputs, output):
            ctx.save_for_backward(*inputs)

        @staticmethod
        def backward(ctx, g):
            x, y = ctx.saved_tensors
            return g * y, g * x

    return {
        "one": lambda a, b: Exp.apply(a),
        "several arguments": lambda a, b: Scaled.apply(a, 3.0, b),
        "twice": lambda a, b: Scaled.apply(Exp.apply(a), 0.5, b) * a,
        "several results": lambda a, b: Both.apply(a)[0] * b + Both.apply(a)[1],
        "one of several results": lambda a, b: Both.apply(a)[1] * b,
        "setup_context": Later.apply,
    }


@needs_torch
@pytest.mark.parametrize("name", functions(nnmpi))
def test_functions_with_a_backward_of_their_own(name: str) -> None:
    a, b = np.array([0.5, -1.0, 2.0]), np.array([1.5, 2.0, -0.5])
    same_as_pytorch(lambda n, a, b: functions(n)[name](a, b), a, b)


def test_a_function_of_values_without_a_gradient_records_nothing() -> None:
    exp = functions(nnmpi)["one"]
    assert not exp(nnmpi.tensor([1.0]), None).requires_grad
    with nnmpi.no_grad():
        assert not exp(leaf(1), None).requires_grad


def test_the_gradients_of_a_function_are_checked() -> None:
    class Wrong(nnmpi.autograd.Function):
        gradients: Any = ()

        @staticmethod
        def forward(ctx, x, y):
            return x + y

        @staticmethod
        def backward(ctx, g):
            return Wrong.gradients

    for gradients, message in (
        ((nnmpi.ones(2),), "1 gradients for 2 arguments"),
        ((nnmpi.ones(2), nnmpi.ones(3)), r"shape \(3,\) for argument 1"),
    ):
        Wrong.gradients = gradients
        with pytest.raises(ValueError, match=message):
            Wrong.apply(leaf(1, 2), leaf(3, 4)).sum().backward()


# ---- as_tensor, and functions that read or write by an index


def test_as_tensor_shares_memory_where_it_can() -> None:
    x = np.arange(3.0)
    t = nnmpi.as_tensor(x)
    t[0] = 7
    assert x[0] == 7
    assert nnmpi.as_tensor(t) is t
    assert nnmpi.as_tensor(t, nnmpi.float32).dtype == "float32"
    assert nnmpi.as_tensor([1.0, 2]).dtype == "float32"


def test_methods_with_an_index_write_in_place() -> None:
    t = nnmpi.zeros(2, 3)
    index = nnmpi.tensor([[2, 0], [1, 1]])
    assert t.scatter_(1, index[:, :1], 5.0) is t
    t.scatter_add_(1, index, nnmpi.ones(2, 2))
    t.index_add_(0, nnmpi.tensor([1, 1]), nnmpi.ones(2, 3), alpha=10)
    assert t.tolist() == [[1, 0, 6], [20, 27, 20]]
    with pytest.raises(RuntimeError, match="in place"):
        t.requires_grad_().scatter_add_(1, index, nnmpi.ones(2, 2))


def test_windows_are_copies_which_a_write_makes_old() -> None:
    t = nnmpi.arange(5)
    windows = t.unfold(0, 3, 2)
    assert windows.tolist() == [[0, 1, 2], [2, 3, 4]]
    t[0] = 7
    with pytest.raises(RuntimeError, match="after a write in place"):
        windows + 1
    assert t.unfold(0, 3, 2).tolist() == [[7, 1, 2], [2, 3, 4]]


def test_a_recorded_step_uses_them() -> None:
    model = nn.Linear(4, 3)
    optimizer = nnmpi.optim.SGD(model.parameters(), lr=0.1)

    def step(x: Any, labels: Any) -> Any:
        scores = model(x)
        picked = scores.gather(1, labels.unsqueeze(1))
        best, places = scores.max(1)
        loss = (best - picked.squeeze(1)).mean() + 0.1 * model.weight.norm()
        optimizer.zero_grad()
        loss.backward()
        for p in model.parameters():
            p.grad.mul_(0.5)
        optimizer.step()
        return loss, (places == labels).sum()

    x = nnmpi.randn(5, 4)
    labels = nnmpi.tensor([0, 1, 2, 0, 1])
    start = {name: np.array(p.detach()) for name, p in model.named_parameters()}
    found = []
    for run in (step, nnmpi.compile(step)):
        model.load_state_dict(start)
        found.append([[y.item() for y in run(x, labels)] for _ in range(4)])
    assert found[0] == found[1]
