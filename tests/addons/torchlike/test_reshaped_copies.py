"""Writes in place after a reshape of images, whose elements are channels-last in memory: values and
gradients are PyTorch's, or the use of a tensor that would have other values is refused."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from helpers.ops.oracle import needs_torch, same_as_pytorch

import nnmpi
from nnmpi import nn

RNG = np.random.default_rng(0)
IMAGES, WEIGHT = RNG.standard_normal((2, 2, 4, 4)), RNG.standard_normal((3, 2, 3, 3))


def a_view_of_a_row(n: Any, y: Any) -> Any:
    rows = y.view(2, -1)
    part = rows[:, 1:5]
    part *= 3
    return rows, part


def read_from_both(n: Any, y: Any) -> Any:
    rows = y.reshape(2, -1)
    return rows * 2, y + 1, rows.detach().sum(), rows.data + 1


def a_copy_of_what_is_no_image(n: Any, y: Any) -> Any:
    x = n.tensor(IMAGES[0, 0])
    row = x.T.reshape(-1)
    row += 1
    column = x.T.contiguous().view(-1)
    x.mul_(2)
    return x, row, column, y


ALIKE: dict[str, Callable[[Any, Any], Any]] = {
    "a view of a row": a_view_of_a_row,
    "read from both": read_from_both,
    "a copy of what is no image": a_copy_of_what_is_no_image,
    "flattened and written": lambda n, y: (r := y.flatten(1).add_(1)).mul_(r.detach().clone()),
    "written and then reshaped": lambda n, y: (
        *(y.reshape(2, -1).sum(), y.mul_(2), y.reshape(2, -1)),
    ),
    "a copy of the reshape": lambda n, y: (y.reshape(2, -1).clone().add_(1), y),
    "contiguous and written": lambda n, y: y.permute(0, 2, 3, 1).contiguous().add_(1),
    "contiguous windows": lambda n, y: y.unfold(2, 2, 2).unfold(3, 2, 2).contiguous().mul_(2),
    "a layer in place": lambda n, y: n.nn.ReLU(inplace=True)(y.flatten(1)),
    "pooled positions": lambda n, y: y.flatten(2).transpose(1, 2).add_(0.5),
}
"""What is computed with the library n from y, the result of a convolution."""


@needs_torch
@pytest.mark.parametrize("program", ALIKE.values(), ids=ALIKE)
def test_values_and_gradients_are_pytorchs(program: Callable[[Any, Any], Any]) -> None:
    def of_weight(n: Any, weight: Any) -> Any:
        return program(n, n.nn.functional.conv2d(n.tensor(IMAGES), weight))

    same_as_pytorch(of_weight, WEIGHT, rtol=1e-10, atol=1e-12)


def a_part_of_the_original(y: Any) -> Any:
    part = y[0]
    y.view(-1)[3] = 0
    return part


def a_copy_of_a_copy(y: Any) -> Any:
    rows = y.reshape(2, -1)
    rows.unfold(1, 2, 2).zero_()
    return rows


def windows_of_what_is_written(y: Any) -> Any:
    x = nnmpi.tensor(IMAGES)
    windows = x.unfold(3, 2, 2)
    x.mul_(2)
    return windows


def of_a_weight_that_is_replaced(y: Any) -> Any:
    layer = nn.Conv2d(2, 3, 3)
    row = layer.weight.data.view(-1)
    step(layer)
    layer.weight.data = layer.weight.data.clone()
    return row


def of_a_weight_written_by_data(y: Any) -> Any:
    layer = nn.Conv2d(2, 3, 3)
    row = layer.weight.reshape(-1)
    layer.weight.data.mul_(2)
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


def of_a_weight_that_an_optimizer_updates(y: Any) -> Any:
    layer = nn.Conv2d(2, 3, 3)
    rows, old = layer.weight.data.view(3, -1), layer.weight.reshape(-1)
    step(layer)
    with pytest.raises(RuntimeError, match="after a write in place"):
        old + 1
    return rows


def step(layer: nn.Module) -> None:
    optimizer = nnmpi.optim.SGD(layer.parameters(), lr=1.0)
    with nnmpi.enable_grad():
        layer(nnmpi.ones(1, 2, 3, 3)).sum().backward()
    optimizer.step()


UNKNOWN: dict[str, Callable[[Any], Any]] = {
    **{
        f.__name__.replace("_", " "): f
        for f in (
            *(a_part_of_the_original, a_copy_of_a_copy, windows_of_what_is_written),
            *(of_a_weight_that_is_replaced, a_gradient_that_adds_up),
            *(of_a_weight_that_an_optimizer_updates, of_a_weight_written_by_data),
        )
    },
    "the original": lambda y: (y.reshape(2, -1).add_(1), y)[1],
    "the reshape": lambda y: (y.reshape(2, -1), y.add_(1))[0],
    "channels last": lambda y: (y.permute(0, 2, 3, 1).reshape(-1, 3).mul_(2), y)[1],
    "data": lambda y: (y.reshape(-1).data.zero_(), y)[1],
    "detached": lambda y: (y.detach().reshape(-1), y.zero_())[0].detach(),
    "written by data": lambda y: (y.reshape(2, -1), y.data.add_(1))[0],
    "the original of a copy of a copy": lambda y: (y.reshape(2, -1).unfold(1, 2, 2).zero_(), y)[1],
    "windows that overlap": lambda y: (w := y.unfold(3, 2, 1), w.add_(1))[0],
    "contiguous": lambda y: (y.data.contiguous().add_(1), y)[1],
    "contiguous, channels last": lambda y: (y.permute(0, 2, 3, 1).contiguous().add_(1), y)[1],
}
"""Write in place, and return a tensor that may have other values than PyTorch's then."""


@pytest.mark.parametrize("program", UNKNOWN.values(), ids=UNKNOWN)
def test_what_may_have_other_values_than_in_pytorch_is_not_used(
    program: Callable[[Any], Any],
) -> None:
    with nnmpi.no_grad():
        old = program(nn.functional.conv2d(nnmpi.tensor(IMAGES), nnmpi.tensor(WEIGHT)))
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
