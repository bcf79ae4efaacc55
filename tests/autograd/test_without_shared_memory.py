"""Tensors without the add-on for memory that tensors share: what works, and what is refused."""

from collections.abc import Iterator

import numpy as np
import pytest

import nnmpi
from nnmpi import Tensor, nn, optim
from nnmpi.autograd import recording


@pytest.fixture(autouse=True)
def _without(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    recording.memory_row.cache_clear()
    monkeypatch.setattr(recording.MEMORY, "where", {})
    yield
    recording.memory_row.cache_clear()


def test_a_write_that_a_view_and_its_gradient_would_miss_is_refused() -> None:
    x = nnmpi.ones(2, 3, requires_grad=True) * 1
    view = x[0]
    with pytest.raises(RuntimeError, match="may_write is of an add-on that is not here: install"):
        x[0] = 5.0
    assert view.tolist() == [1, 1, 1]


def test_a_view_shows_writes_that_need_no_gradient() -> None:
    x = nnmpi.ones(2, 3)
    view = x[0]
    x += 1
    assert view.tolist() == [2, 2, 2]


def test_a_backward_pass_that_would_read_overwritten_values_is_refused() -> None:
    x, w = nnmpi.ones(3, requires_grad=True), nnmpi.ones(3)
    y = (x * w).sum()
    w += 1
    with pytest.raises(RuntimeError, match="was written in place after the forward pass had used"):
        y.backward()


def test_copies_where_pytorch_has_views_need_no_add_on() -> None:
    x = nnmpi.arange(6.0).reshape(2, 3)
    assert x.T.reshape(6).tolist() == [0, 3, 1, 4, 2, 5]
    assert x[[1, 0]].tolist() == [[3, 4, 5], [0, 1, 2]]


def test_a_loop_of_steps_needs_no_add_on() -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
    optimizer = optim.Adam(model.parameters(), lr=0.1)
    losses = []
    for _ in range(3):
        optimizer.zero_grad()
        loss = nn.CrossEntropyLoss()(model(nnmpi.ones(5, 3)), np.zeros(5, int))
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses == sorted(losses, reverse=True)


def test_a_view_older_than_the_optimizer_is_refused() -> None:
    """The optimizer puts parameters into memory of its own, and nothing here would follow."""
    model = nn.Linear(3, 2)
    view: Tensor = model.weight.detach()[0]
    optim.SGD(model.parameters(), lr=0.1)
    with pytest.raises(RuntimeError, match="renew is of an add-on that is not here"):
        view.numpy()
