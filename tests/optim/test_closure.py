"""What a step takes in the place of a closure, and a closure that fails."""

from typing import Any

import numpy as np
import pytest
from helpers.datafiles import refused

import nnmpi
from nnmpi import nn, optim

X = np.random.default_rng(0).standard_normal((4, 3)).astype("float32")


def test_a_step_without_a_closure_returns_none_and_takes_no_factor_by_position() -> None:
    layer = nn.Linear(3, 3)
    opt = optim.SGD(layer.parameters(), lr=1.0)
    layer(X).sum().backward()
    before = layer.weight.data.copy()
    with refused("step: the closure 0.5 is no function", "step(lr_factor=0.5)"):
        opt.step(0.5)  # type: ignore[arg-type]
    np.testing.assert_array_equal(layer.weight.data, before)
    assert opt.step(lr_factor=0.5) is None
    np.testing.assert_allclose(layer.weight.data, before - 0.5 * layer.weight.grad, rtol=1e-6)


def test_recording_is_as_before_if_a_closure_fails() -> None:
    opt = optim.SGD(nn.Linear(3, 3).parameters(), lr=1.0)

    def fails() -> Any:
        raise RuntimeError("not today")

    with nnmpi.no_grad():
        with pytest.raises(RuntimeError, match="not today"):
            opt.step(fails)
        assert not (nnmpi.tensor([1.0], requires_grad=True) * 2).requires_grad
