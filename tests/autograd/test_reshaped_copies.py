"""Writes in place after a reshape of images, whose elements are channels-last in memory: values and
gradients are PyTorch's, or the use of a tensor that would have other values is refused."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from helpers.ops.oracle import needs_torch, pytorch

import nnmpi
from nnmpi import nn

RNG = np.random.default_rng(0)
IMAGES, WEIGHT = RNG.standard_normal((2, 2, 4, 4)), RNG.standard_normal((3, 2, 3, 3))

Case = Callable[[Any, Any], Any]
"""case(n, y) returns what the library n computes from y, the result of a convolution."""


def flattened_and_written(n: Any, y: Any) -> Any:
    rows = y.flatten(1)
    rows += 1
    rows *= rows.detach().clone()
    return rows


def a_view_of_a_row(n: Any, y: Any) -> Any:
    rows = y.view(2, -1)
    part = rows[:, 1:5]
    part *= 3
    return rows, part


def written_and_then_reshaped(n: Any, y: Any) -> Any:
    old = y.reshape(2, -1).sum()
    y *= 2
    return old, y.reshape(2, -1), y


def read_from_both(n: Any, y: Any) -> Any:
    rows = y.reshape(2, -1)
    return rows * 2, y + 1, rows.detach().sum(), rows.data + 1


def a_copy_of_the_reshape(n: Any, y: Any) -> Any:
    rows = y.reshape(2, -1).clone()
    rows += 1
    return rows, y


def contiguous_and_written(n: Any, y: Any) -> Any:
    tokens = y.permute(0, 2, 3, 1).contiguous()
    tokens += 1
    return tokens


def contiguous_windows(n: Any, y: Any) -> Any:
    windows = y.unfold(2, 2, 2).unfold(3, 2, 2).contiguous()
    windows *= 2
    return windows


def a_layer_in_place(n: Any, y: Any) -> Any:
    return n.nn.ReLU(inplace=True)(y.flatten(1))


def a_copy_of_what_is_no_image(n: Any, y: Any) -> Any:
    x = n.tensor(IMAGES[0, 0])
    row = x.T.reshape(-1)
    row += 1
    column = x.T.contiguous().view(-1)
    x.mul_(2)
    return x, row, column, y


def pooled_positions(n: Any, y: Any) -> Any:
    tokens = y.flatten(2).transpose(1, 2)
    tokens += 0.5
    return tokens


ALIKE = [
    contiguous_and_written, contiguous_windows, flattened_and_written, a_view_of_a_row,
    written_and_then_reshaped, read_from_both,
    a_copy_of_the_reshape, a_layer_in_place, a_copy_of_what_is_no_image, pooled_positions,
]  # fmt: skip


def run(n: Any, case: Case) -> list[np.ndarray]:
    weight = n.tensor(WEIGHT, requires_grad=True)
    y = n.nn.functional.conv2d(n.tensor(IMAGES), weight)
    results = case(n, y)
    results = results if isinstance(results, tuple) else (results,)
    sum((r * r).sum() for r in results).backward()
    return [*(r.detach().numpy() for r in results), weight.grad.numpy()]


@needs_torch
@pytest.mark.parametrize("case", ALIKE)
def test_values_and_gradients_are_pytorchs(case: Case) -> None:
    for ours, theirs in zip(run(nnmpi, case), run(pytorch(), case), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-10, atol=1e-12)


def the_original(y: Any) -> Any:
    y.reshape(2, -1).add_(1)
    return y


def a_part_of_the_original(y: Any) -> Any:
    part = y[0]
    y.view(-1)[3] = 0
    return part


def the_reshape(y: Any) -> Any:
    rows = y.reshape(2, -1)
    y.add_(1)
    return rows


def a_part_of_the_reshape(y: Any) -> Any:
    part = y.flatten(1)[0]
    y[0] = 0
    return part


def channels_last(y: Any) -> Any:
    y.permute(0, 2, 3, 1).reshape(-1, 3).mul_(2)
    return y


def data(y: Any) -> Any:
    y.reshape(-1).data.zero_()
    return y


def detached(y: Any) -> Any:
    rows = y.detach().reshape(-1)
    y.zero_()
    return rows.detach()


def written_by_data(y: Any) -> Any:
    rows = y.reshape(2, -1)
    y.data.add_(1)
    return rows


def a_copy_of_a_copy(y: Any) -> Any:
    rows = y.reshape(2, -1)
    rows.unfold(1, 2, 2).zero_()
    return rows


def the_original_of_a_copy_of_a_copy(y: Any) -> Any:
    y.reshape(2, -1).unfold(1, 2, 2).zero_()
    return y


def windows_of_what_is_written(y: Any) -> Any:
    x = nnmpi.tensor(IMAGES)
    windows = x.unfold(3, 2, 2)
    x.mul_(2)
    return windows


def windows_that_overlap(y: Any) -> Any:
    windows = y.unfold(3, 2, 1)
    windows.add_(1)
    return windows


def contiguous(y: Any) -> Any:
    y.data.contiguous().add_(1)
    return y


def contiguous_channels_last(y: Any) -> Any:
    y.permute(0, 2, 3, 1).contiguous().add_(1)
    return y


def of_a_weight_that_is_replaced(y: Any) -> Any:
    layer = nn.Conv2d(2, 3, 3)
    row = layer.weight.data.view(-1)
    optimizer = nnmpi.optim.SGD(layer.parameters(), lr=1.0)
    with nnmpi.enable_grad():
        layer(nnmpi.ones(1, 2, 3, 3)).sum().backward()
    optimizer.step()
    layer.weight.data = layer.weight.data.clone()
    return row


def data_of_a_weight(y: Any) -> Any:
    layer = nn.Conv2d(2, 3, 3)
    row = layer.weight.reshape(-1)
    layer.weight.data.add_(1)
    return row


def a_gradient_that_adds_up(y: Any) -> Any:
    layer = nn.Conv2d(2, 3, 3)
    for k in range(2):
        with nnmpi.enable_grad():
            layer(nnmpi.ones(1, 2, 3, 3)).sum().backward()
        if k == 0:
            row = layer.weight.grad.view(-1)
            assert row.sum().item() == 54
    return row


def the_weight_of_a_convolution(y: Any) -> Any:
    weight = nn.Conv2d(2, 3, 3).weight
    weight.view(3, -1).zero_()
    return weight


def of_a_weight_that_an_optimizer_updates(y: Any) -> Any:
    layer = nn.Conv2d(2, 3, 3)
    rows, old = layer.weight.data.view(3, -1), layer.weight.reshape(-1)
    optimizer = nnmpi.optim.SGD(layer.parameters(), lr=1.0)
    with nnmpi.enable_grad():
        layer(nnmpi.ones(1, 2, 3, 3)).sum().backward()
    optimizer.step()
    with pytest.raises(RuntimeError, match="after a write in place"):
        old + 1
    return rows


UNKNOWN = [
    the_original, a_part_of_the_original, the_reshape, a_part_of_the_reshape, channels_last, data,
    detached, the_weight_of_a_convolution, of_a_weight_that_an_optimizer_updates, written_by_data,
    a_copy_of_a_copy, the_original_of_a_copy_of_a_copy, windows_of_what_is_written,
    windows_that_overlap, contiguous, contiguous_channels_last,
    of_a_weight_that_is_replaced, data_of_a_weight, a_gradient_that_adds_up,
]  # fmt: skip


@pytest.mark.parametrize("case", UNKNOWN)
def test_what_may_have_other_values_than_in_pytorch_is_not_used(case: Callable[[Any], Any]) -> None:
    with nnmpi.no_grad():
        y = nn.functional.conv2d(nnmpi.tensor(IMAGES), nnmpi.tensor(WEIGHT))
        old = case(y)
        with pytest.raises(RuntimeError, match="after a write in place to another one"):
            old + 1


def test_a_write_to_a_reshape_of_a_gradient_is_refused_at_once() -> None:
    layer = nn.Conv2d(2, 3, 3)
    layer(nnmpi.ones(1, 2, 3, 3)).sum().backward()
    row = layer.weight.grad.view(-1)
    with pytest.raises(RuntimeError, match="does not reach the gradient"):
        row.mul_(2)


def test_a_backward_pass_notices_a_write_to_a_reshape_in_the_same_memory() -> None:
    x = nnmpi.tensor(IMAGES, requires_grad=True)
    y = nn.functional.conv2d(x, nnmpi.tensor(WEIGHT)).exp()
    loss = y.sum()
    y.detach().permute(0, 2, 3, 1).reshape(-1, 3).mul_(2)
    with pytest.raises(RuntimeError, match="written in place after the forward pass"):
        loss.backward()


def test_a_compiled_step_writes_to_a_reshape() -> None:
    def losses(compiled: bool) -> list[float]:
        nnmpi.manual_seed(0)
        model = nn.Conv2d(2, 3, 3)
        optimizer = nnmpi.optim.SGD(model.parameters(), lr=0.1)

        def step(x: Any) -> Any:
            rows = model(x).flatten(1)
            rows *= 2
            loss = (rows * rows).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            return loss

        function = nnmpi.compile(step) if compiled else step
        return [function(nnmpi.tensor(IMAGES.astype("float32"))).item() for _ in range(4)]

    assert losses(True) == losses(False)
