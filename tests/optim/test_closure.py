"""Steps with a closure, beside PyTorch's."""

from typing import Any

import numpy as np
import pytest
from helpers.datafiles import refused

import nnmpi
from nnmpi import nn, optim
from nnmpi.optim.rules import OPTIMIZERS

RULES = ["SGD", "Adam", "AdamW", "RMSprop"]
X, Y = np.random.default_rng(0).standard_normal((2, 4, 3))


def test_the_rules_are_all() -> None:
    assert {name.lower() for name in RULES} == {*OPTIMIZERS}


def trained(library: Any, tensor: Any, optimizers: Any, name: str, without: Any) -> list[Any]:
    """The losses of three steps with a closure, and the weight after them, in float64."""
    layer = library.Linear(3, 3, bias=False)
    layer.weight = library.Parameter(tensor(np.linspace(-1, 1, 9).reshape(3, 3)))
    opt, losses = getattr(optimizers, name)(layer.parameters(), lr=0.1), list[Any]()

    def closure() -> Any:
        opt.zero_grad()
        loss = ((layer(tensor(X)) - tensor(Y)) ** 2).mean()
        loss.backward()
        return loss

    for _ in range(3):
        with without():
            losses.append(opt.step(closure))
    return [*(loss.item() for loss in losses), *layer.weight.detach().numpy().ravel()]


@pytest.mark.parametrize("name", RULES)
def test_a_closure_is_called_and_its_loss_returned_as_in_pytorch(name: str) -> None:
    """Its gradients are recorded where the caller's would not be."""
    torch = pytest.importorskip(
        "torch", reason="PyTorch is not installed: NNMPI_WITH_TORCH=1 scripts/test installs it"
    )
    found = trained(nn, nnmpi.tensor, optim, name, nnmpi.no_grad)
    wanted = trained(torch.nn, torch.tensor, torch.optim, name, torch.no_grad)
    np.testing.assert_allclose(found, wanted, rtol=1e-6)
    assert found[2] < found[0]


def test_a_step_without_a_closure_returns_none_and_takes_no_factor_by_position() -> None:
    layer = nn.Linear(3, 3)
    opt = optim.SGD(layer.parameters(), lr=1.0)
    layer(X.astype("float32")).sum().backward()
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
