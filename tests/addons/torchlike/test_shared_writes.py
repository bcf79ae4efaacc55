"""Writes in place that are part of a graph, to memory that views, detached tensors or arrays share:
values of PyTorch, and gradients against differences."""

import gc
from collections.abc import Callable
from importlib import import_module
from typing import Any
from weakref import ref

import numpy as np
import pytest
from helpers.ops.oracle import in_both, needs_torch, same_as_pytorch
from writing_programs import DETACHED, PROGRAMS

import nnmpi
from nnmpi import nn
from nnmpi.utils.checkpoint import checkpoint

W = np.arange(1.0, 13).reshape(4, 3) / 12

WRITES: dict[str, Callable[[Any, Any, Any], Any]] = {
    "relu_": lambda n, w, x: x.relu_(),
    "a function": lambda n, w, x: n.nn.functional.relu(x, inplace=True),
    "leaky": lambda n, w, x: n.nn.functional.leaky_relu(x, 0.2, inplace=True),
    "an elu": lambda n, w, x: n.nn.functional.elu(x, 0.5, True),
    "several": lambda n, w, x: x.mul_(2.0).add_(w, alpha=3).sigmoid_(),
    "an operator": lambda n, w, x: x.__iadd__(w),
    "a power": lambda n, w, x: x.__ipow__(2),
    "lerp_": lambda n, w, x: x.lerp_(n.ones(3, dtype=n.float64), 0.25),
    "lerp_ by a gradient": lambda n, w, x: x.lerp_(2 * w, w),
    "rounded": lambda n, w, x: x.mul_(4).floor_().add_(w),
    "to even": lambda n, w, x: x.mul_(4).round_().add_(w),
    "up": lambda n, w, x: x.mul_(4).ceil_().mul_(w),
}
"""Those to a result x, which they return."""
CASES = {**{f.__name__: f for f in PROGRAMS}, **WRITES}


@needs_torch
@pytest.mark.parametrize("name", CASES)
def test_values_and_gradients_are_pytorchs(name: str) -> None:
    same_as_pytorch(lambda n, w: CASES[name](n, w, w * 2 - 0.9), W)


def run(name: str, values: np.ndarray) -> tuple[Any, list[Any], Any]:
    """The leaf, what the program returns, and a sum of what has a gradient."""
    w = nnmpi.tensor(values, requires_grad=True)
    found = CASES[name](nnmpi, w, x := w * 2 - 0.9)
    assert name not in WRITES or found is x
    outputs = [*found] if isinstance(found, tuple | list) else [found]
    return w, outputs, sum((k * y * y).sum() for k, y in enumerate(outputs, 1) if y.requires_grad)


@pytest.mark.parametrize("name", [name for name in CASES if CASES[name] not in DETACHED])
def test_gradients_are_the_slopes_of_the_values(name: str) -> None:
    """And the values are those that are written where nothing is recorded."""
    direction = np.random.default_rng(0).standard_normal(W.shape)
    w, outputs, loss = run(name, W)
    loss.backward()
    high, low = (run(name, W + h * direction)[2].item() for h in (1e-6, -1e-6))
    assert (w.grad.numpy() * direction).sum() == pytest.approx((high - low) / 2e-6, rel=1e-6)
    with nnmpi.no_grad():
        for recorded, plain in zip(outputs, run(name, W)[1], strict=True):
            np.testing.assert_array_equal(recorded.detach().numpy(), plain.numpy())


@in_both
def test_an_older_view_of_a_constant_requires_a_gradient(library: str) -> None:
    n = import_module(library)
    x, w = n.zeros(3), n.ones(3, requires_grad=True)
    v, d = x[1:], x.detach()
    x += w
    assert [t.requires_grad for t in (v, x, d)] == [True, True, False]


class Square(nnmpi.autograd.Function):
    @staticmethod
    def forward(ctx: Any, a: Any) -> Any:
        ctx.save_for_backward(a)
        return a * a

    @staticmethod
    def backward(ctx: Any, g: Any) -> Any:
        return g * 2 * ctx.saved_tensors[0]


NEEDED: dict[str, Callable[[Any], Any]] = {
    "an argument": lambda x: (x * x, x[0].add_(1))[0],
    "a result": lambda x: (y := x.sigmoid()).add_(y[0]),
    "through a detached tensor": lambda x: (x * x, x.detach()[0].fill_(7))[0],
    "by a function of one's own": lambda x: (Square.apply(x), x.relu_(), x.add_(1))[0],
}


@pytest.mark.parametrize("compute", NEEDED.values(), ids=NEEDED)
def test_a_gradient_that_needs_an_old_value_is_refused(compute: Callable[[Any], Any]) -> None:
    w = nnmpi.tensor(W, requires_grad=True)
    with pytest.raises(RuntimeError, match="written in place after the forward pass"):
        compute(w * 1.5).sum().backward()


def test_an_operand_in_the_memory_that_is_written_is_refused_where_its_gradient_needs_it() -> None:
    x = nnmpi.tensor(W, requires_grad=True) * 2
    with pytest.raises(RuntimeError, match="operand that lies in the same memory"):
        x[:2].mul_(x[1:3])


def test_a_view_of_an_array_whose_elements_overlap_is_refused() -> None:
    rows = np.lib.stride_tricks.as_strided(np.zeros(6), (4, 3), (8, 8))
    x = nnmpi.from_numpy(rows)
    with pytest.raises(RuntimeError, match="elements in common with itself"):
        x[0].mul_(nnmpi.tensor(W[0], requires_grad=True))


def test_a_view_of_an_array_in_reverse_order_is_known() -> None:
    w = nnmpi.tensor(W, requires_grad=True)
    x = nnmpi.from_numpy(np.zeros((4, 3))[::-1, ::-1])
    x[1] += w[1]
    (x * x).sum().backward()
    np.testing.assert_array_equal(x.detach().numpy()[1], W[1])
    np.testing.assert_array_equal(w.grad.numpy()[1], 2 * W[1])


def test_a_view_of_what_got_a_gradient_has_one_wherever_it_is_used() -> None:
    def view(w: Any) -> Any:
        x = nnmpi.zeros(4, 3, dtype=nnmpi.float64)
        v = x[1]
        x += w
        return v

    w = nnmpi.tensor(W, requires_grad=True)
    Square.apply(view(w)).sum().backward()
    np.testing.assert_array_equal(w.grad.numpy(), 2 * W * [[0], [1], [0], [0]])
    with pytest.raises(TypeError, match="would lose the gradient"):
        np.asarray(view(w))
    assert view(w).grad_fn is not None
    assert not view(w).is_leaf


class Repeats(nn.Module):
    """Runs a function again in the backward pass, of a view of what is written in between."""

    def forward(self, w: Any) -> Any:
        x = w * 1.5
        v = x[0]
        x *= 2
        return checkpoint(lambda t: (t * t).sum(), v)


def test_what_runs_again_takes_the_history_of_a_view() -> None:
    w = nnmpi.tensor(W, requires_grad=True)
    Repeats()(w).backward()
    np.testing.assert_allclose(w.grad.numpy()[0], 18 * W[0])


def test_the_memory_of_a_constant_that_was_written_is_free_as_soon_as_no_gradient_needs_it() -> (
    None
):
    x = nnmpi.zeros(4, 3, dtype=nnmpi.float64)
    x[0] = 1
    y, memory = nnmpi.tensor(W, requires_grad=True) + x, ref(x.array)
    del x
    assert memory() is None
    y.sum().backward()


def test_views_and_what_they_view_are_freed_without_a_search_for_cycles() -> None:
    gc.collect()
    gc.disable()
    try:
        x = nnmpi.tensor(W, requires_grad=True) * 2
        v, d = x[0], x.detach()
        v *= 3
        d[1] = 7
        left = [ref(t) for t in (x, v, d, x.array)]
        del x, v, d
        assert [t() for t in left] == [None] * 4
    finally:
        gc.enable()


class Reuses(nn.Module):
    """Uses the input of a layer in place afterwards."""

    def __init__(self, inplace: bool) -> None:
        self.linear, self.relu = nn.Linear(4, 4), nn.ReLU(inplace)

    def forward(self, x: Any) -> Any:
        h = self.linear(x)
        return self.relu(h) + h


def test_an_input_that_is_used_after_a_layer_in_place_is_refused_in_a_trainer() -> None:
    data = np.ones((8, 4), "float32"), np.zeros(8, "int64")
    config = nnmpi.Config(batch_size=8, epochs=1, quiet=True)
    nnmpi.Trainer(config, build=lambda: Reuses(False), data=data).fit()
    with pytest.raises(ValueError, match="used after a layer with inplace=True"):
        nnmpi.Trainer(config, build=lambda: Reuses(True), data=data).fit()


class Residual(nn.Module):
    """Adds in place to a result, whose view is summed before or after, or computes that anew."""

    def __init__(self, inplace: bool, after: bool) -> None:
        self.linear, self.inplace, self.after = nn.Linear(4, 4), inplace, after

    def forward(self, x: Any) -> Any:
        h = self.linear(x)
        v = h.view(-1, 2, 2)
        before = v.sum(2)
        if self.inplace:
            h += 1
            return h[:, :2] * (v.sum(2) if self.after else before)
        new = h + 1
        return new[:, :2] * (new.reshape(-1, 2, 2).sum(2) if self.after else before)


@pytest.mark.parametrize("after", [False, True])
def test_a_trainer_computes_what_a_model_without_writes_does(after: bool) -> None:
    x = np.random.default_rng(0).standard_normal((8, 4)).astype("float32")
    found = []
    for inplace in (True, False):
        config = nnmpi.Config(batch_size=8, steps=3, quiet=True)
        build = lambda inplace=inplace: Residual(inplace, after)  # noqa: E731
        trainer = nnmpi.Trainer(config, build=build, data=(x, np.arange(8) % 2))
        trainer.fit()
        found.append(trainer.model.state_dict())
    for name in found[0]:
        np.testing.assert_array_equal(found[0][name].numpy(), found[1][name].numpy())
