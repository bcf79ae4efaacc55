"""Writes in place that are part of a graph, to memory that views, detached tensors or arrays share:
values of PyTorch, and gradients against differences."""

import gc
from collections.abc import Callable
from typing import Any
from weakref import ref

import numpy as np
import pytest
from helpers.ops.oracle import needs_torch, pytorch

import nnmpi
from nnmpi import nn
from nnmpi.utils.checkpoint import checkpoint

W = np.arange(1.0, 13).reshape(4, 3) / 12

Case = Callable[[Any, Any], tuple[Any, ...]]
"""case(n, w): what it computes from a tensor of the library n, its names and views at the end."""

CASES: dict[str, Case] = {}


def case(function: Case) -> Case:
    CASES[function.__name__] = function
    return function


@case
def all_names_after_a_view(n: Any, w: Any) -> tuple[Any, ...]:
    x = w * 1.5
    other, v = x, x.view(-1)
    x += w
    assert x is other
    return x, v * 1.0


@case
def a_detached_tensor(n: Any, w: Any) -> tuple[Any, ...]:
    x = w * 1.5
    d = x.detach()
    x *= w
    return x, d


@case
def an_array(n: Any, w: Any) -> tuple[Any, ...]:
    x = w * 1.5
    array = x.detach().numpy()
    x.sigmoid_()
    return x, n.tensor(array)


@case
def data(n: Any, w: Any) -> tuple[Any, ...]:
    x = w * 1.5
    d = x.data
    x.mul_(w)
    return x, d


@case
def the_array_of_a_constant(n: Any, w: Any) -> tuple[Any, ...]:
    array = np.zeros((4, 3))
    x = n.from_numpy(array)
    x.add_(w, alpha=2)
    return x, n.tensor(array)


@case
def a_row_and_what_was_read(n: Any, w: Any) -> tuple[Any, ...]:
    x = w * 1.5
    v, u = x[1], x[:, 1] * 1
    v *= w[0]
    return x, v, u


@case
def two_views_that_overlap(n: Any, w: Any) -> tuple[Any, ...]:
    x = w * 2
    a, b = x[:2], x[1:]
    a += w[2:]
    b.mul_(w[:3])
    return x, a * 1, b * 1


@case
def rows_that_were_read(n: Any, w: Any) -> tuple[Any, ...]:
    y = n.zeros(4, 3, dtype=n.float64)
    for i in range(4):
        y[i] += w[i]
        if i:
            y[i] += 2 * y[i - 1]
    return (y,)


@case
def columns_of_rows_before(n: Any, w: Any) -> tuple[Any, ...]:
    y = n.zeros(4, 3, dtype=n.float64)
    for i in range(4):
        y[i] = w[i] + (3 * y[i - 1] if i else 0)
    return (y,)


@case
def an_older_result_that_needs_no_old_value(n: Any, w: Any) -> tuple[Any, ...]:
    x = w * 1.5
    y, _ = x * 2, x[0]
    x += w
    return x, y


@case
def a_view_alone(n: Any, w: Any) -> tuple[Any, ...]:
    x = (w * 1.5).view(2, 6)
    x += 1
    x[0] *= 3
    return (x,)


@case
def parts_whose_whole_has_no_name(n: Any, w: Any) -> tuple[Any, ...]:
    def parts(t: Any) -> tuple[Any, Any]:
        whole = t * 2
        return whole[:, :1], whole[:, 1:]

    a, b = parts(w)
    a *= 3
    b += a
    return a, b


@case
def a_transpose(n: Any, w: Any) -> tuple[Any, ...]:
    x = w * 2
    t = x.T
    t[0] += w[:, 2]
    t.mul_(2)
    return x, t


@case
def every_second_element(n: Any, w: Any) -> tuple[Any, ...]:
    x = w * 2
    v = x.view(2, 6)[:, ::2]
    v.exp_()
    return x, v


@case
def a_mask(n: Any, w: Any) -> tuple[Any, ...]:
    x = w * 2 - 0.9
    v = x.T
    x[x > 0] = w[0, 1]
    return x.masked_fill_(x < -0.5, 3.0), v


@case
def numbers(n: Any, w: Any) -> tuple[Any, ...]:
    x = w * 2
    x[0].fill_(3)
    x[1].zero_()
    return (x,)


@case
def a_view_of_a_constant(n: Any, w: Any) -> tuple[Any, ...]:
    x = n.zeros(4, 3, dtype=n.float64)
    v = x[1:]
    x[1] = w[0]
    return x, v * 1


@case
def scattered_rows(n: Any, w: Any) -> tuple[Any, ...]:
    x = n.zeros(5, 3, dtype=n.float64)
    v = x[0]
    x.index_add_(0, n.tensor([0, 2, 2, 4]), w)
    return x, v * 1


@case
def an_expanded_view(n: Any, w: Any) -> tuple[Any, ...]:
    x = w * 1
    v = x[0].expand(2, 3)
    x *= 2
    return x, v * 1


@case
def one_write_after_the_other(n: Any, w: Any) -> tuple[Any, ...]:
    x = w * 2
    v = x[0]
    v *= w[1]
    v *= w[2]
    x[3] += v
    return (x,)


@case
def a_sum_whose_values_are_kept(n: Any, w: Any) -> tuple[Any, ...]:
    total, kept = n.zeros((), dtype=n.float64), []
    for i in range(4):
        total += w[i].sum()
        kept.append(total.detach())
    return total, *kept


@case
def a_constant_that_no_gradient_needs(n: Any, w: Any) -> tuple[Any, ...]:
    x = n.ones(4, 3, dtype=n.float64)
    y = w + x
    x.zero_()
    return (y,)


@case
def a_contiguous_copy_of_a_transpose(n: Any, w: Any) -> tuple[Any, ...]:
    x = w * 2
    c = x.T.contiguous()
    c.zero_()
    return x, c


@case
def a_layer_in_place(n: Any, w: Any) -> tuple[Any, ...]:
    x = w * 2 - 0.9
    v, d = x.view(-1), x.detach()
    y = n.nn.LeakyReLU(0.2, inplace=True)(x)
    return y, x, v * 1, d


@case
def layers_in_place(n: Any, w: Any) -> tuple[Any, ...]:
    x, kept = w * 2 - 0.9, []
    for layer in (n.nn.ELU(0.5, True), n.nn.SiLU(True), n.nn.Hardswish(True), n.nn.ReLU(True)):
        kept.append(x)
        x = layer(x) * 1.5
    return x, *kept


@case
def a_layer_in_place_on_data(n: Any, w: Any) -> tuple[Any, ...]:
    x = n.ones(4, 3, dtype=n.float64) - 2
    v = x[0]
    y = n.nn.ReLU(inplace=True)(x)
    return y * w, x, v


@case
def parts_that_overlap_of_a_whole_without_a_name(n: Any, w: Any) -> tuple[Any, ...]:
    def parts(t: Any) -> tuple[Any, Any]:
        whole = t * 2
        return whole[:3], whole[2:]

    a, b = parts(w)
    a *= 3
    return a, b * 1


@case
def a_view_of_what_was_written_and_has_no_name(n: Any, w: Any) -> tuple[Any, ...]:
    def view(t: Any) -> Any:
        whole = t * 2
        v = whole[:, ::2]
        whole.add_(t)
        return v

    return (view(w) * 1,)


@case
def a_detached_tensor_that_is_written(n: Any, w: Any) -> tuple[Any, ...]:
    x = w * 1.5
    v, d = x[0], x.detach()
    u = d[0]
    d.mul_(w)
    return x, d, v * 1, u * 1


@case
def a_state_that_is_detached_at_each_step(n: Any, w: Any) -> tuple[Any, ...]:
    h, kept = n.zeros(3, dtype=n.float64), []
    for i in range(3):
        h = h.detach()
        h[:1] += w[i, 0]
        h = h * w[i]
        kept.append(h)
    return tuple(kept)


@case
def a_view_in_place_after_its_base(n: Any, w: Any) -> tuple[Any, ...]:
    x = w * 2 - 0.9
    v, u = x[:, ::2], x[:, 1]
    x.add_(w, alpha=2)
    n.nn.functional.leaky_relu(v, 0.2, inplace=True)
    return x, v * 1, u * 1


@case
def a_copy_by_reshape(n: Any, w: Any) -> tuple[Any, ...]:
    x = w * 2
    copy = x.T.reshape(-1)
    copy[..., 0] *= w[0, 1]
    row = copy.reshape(3, 4)[1]
    row *= 3
    return x, copy


@case
def a_sum_that_becomes_zero(n: Any, w: Any) -> tuple[Any, ...]:
    total = w.sum()
    total.zero_()
    total += (w * w).sum()
    return (total,)


@case
def data_that_is_written(n: Any, w: Any) -> tuple[Any, ...]:
    x = w * 1.5
    d, c = x.data, n.ones(4, 3, dtype=n.float64) - 2
    d += 1
    d[0].mul_(3)
    n.nn.functional.relu(c.data, inplace=True)
    return x * w, d, c


def loss_of(outputs: tuple[Any, ...]) -> Any:
    return sum((y * y).sum() * (k + 1) for k, y in enumerate(outputs) if y.requires_grad)


def run(n: Any, name: str, values: np.ndarray = W) -> tuple[list[np.ndarray], float, np.ndarray]:
    w = n.tensor(values, requires_grad=True)
    outputs = CASES[name](n, w)
    loss = loss_of(outputs)
    loss.backward()
    return [y.detach().numpy() for y in outputs], loss.item(), w.grad.numpy()


@needs_torch
@pytest.mark.parametrize("name", CASES)
def test_values_and_gradients_are_pytorchs(name: str) -> None:
    (ours, _, gradient), (theirs, _, expected) = (run(n, name) for n in (nnmpi, pytorch()))
    for y, z in zip([*ours, gradient], [*theirs, expected], strict=True):
        np.testing.assert_allclose(y, z, rtol=1e-12, atol=1e-15)


DETACHED = {
    "a_detached_tensor_that_is_written",
    "a_state_that_is_detached_at_each_step",
    "data_that_is_written",
}
"""Cases with values that depend on w without a gradient."""


@pytest.mark.parametrize("name", [name for name in CASES if name not in DETACHED])
def test_gradients_are_the_slopes_of_the_values(name: str) -> None:
    gradient = run(nnmpi, name)[2]
    direction = np.random.default_rng(0).standard_normal(W.shape)
    high, low = (run(nnmpi, name, W + h * direction)[1] for h in (1e-6, -1e-6))
    assert (gradient * direction).sum() == pytest.approx((high - low) / 2e-6, rel=1e-6)


@pytest.mark.parametrize("n", [nnmpi, pytest.param("torch", marks=needs_torch)])
def test_an_older_view_of_a_constant_requires_a_gradient(n: Any) -> None:
    n = pytorch() if n == "torch" else n
    x, w = n.zeros(3), n.ones(3, requires_grad=True)
    v, d = x[1:], x.detach()
    x += w
    assert [t.requires_grad for t in (v, x, d)] == [True, True, False]


def squared(n: Any, w: Any) -> Any:
    x = w * 1.5
    y, v = x * x, x[0]
    v += 1
    return y


def sigmoid(n: Any, w: Any) -> Any:
    x = (w * 1.5).sigmoid()
    v = x[0]
    x += v
    return x


def detached(n: Any, w: Any) -> Any:
    x = w * 2
    y, d = x * x, x.detach()
    d[0] = 7
    return y


def saved(n: Any, w: Any) -> Any:
    class Square(n.autograd.Function):
        @staticmethod
        def forward(ctx: Any, a: Any) -> Any:
            ctx.save_for_backward(a)
            return a * a

        @staticmethod
        def backward(ctx: Any, g: Any) -> Any:
            return g * 2 * ctx.saved_tensors[0]

    x = w * 1.5
    y = Square.apply(x)
    x.relu_()
    x += 1
    return y


NEEDED: dict[str, Callable[[Any, Any], Any]] = {
    "an argument": squared,
    "a result": sigmoid,
    "through a detached tensor": detached,
    "by a function of one's own": saved,
}


@pytest.mark.parametrize("name", NEEDED)
def test_a_gradient_that_needs_an_old_value_is_refused(name: str) -> None:
    w = nnmpi.tensor(W, requires_grad=True)
    with pytest.raises(RuntimeError, match="written in place after the forward pass"):
        NEEDED[name](nnmpi, w).sum().backward()


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
    class Double(nnmpi.autograd.Function):
        @staticmethod
        def forward(ctx: Any, a: Any) -> Any:
            return a * 2

        @staticmethod
        def backward(ctx: Any, g: Any) -> Any:
            return g * 2

    def view(w: Any) -> Any:
        x = nnmpi.zeros(4, 3, dtype=nnmpi.float64)
        v = x[1]
        x += w
        return v

    w = nnmpi.tensor(W, requires_grad=True)
    Double.apply(view(w)).sum().backward()
    np.testing.assert_array_equal(w.grad.numpy(), [[0] * 3, [2] * 3, [0] * 3, [0] * 3])
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
