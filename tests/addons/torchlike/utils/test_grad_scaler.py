"""GradScaler: losses times a scale, and steps that are left out."""

from typing import Any

import numpy as np
import pytest

import nnmpi
from nnmpi import nn, optim
from nnmpi.amp import GradScaler


def made(**options: Any) -> tuple[Any, Any, GradScaler]:
    """A layer, an optimizer and a scaler."""
    with nnmpi.seeded(0):
        layer = nn.Linear(3, 2)
    return layer, optim.SGD(layer.parameters(), lr=0.5), GradScaler("cpu", **options)


def trained(scaler: GradScaler | None, steps: int = 4) -> np.ndarray:
    """The weight after steps with or without a scaler."""
    layer, opt, _ = made()
    for i in range(steps):
        opt.zero_grad()
        loss = (layer(nnmpi.full((2, 3), 0.3 + i)) ** 2).mean() / 8
        if scaler is None:
            loss.backward()
            opt.step()
        else:
            scaler.scale(loss).backward()
            scaler.step(opt)
            scaler.update()
    return np.array(layer.weight.numpy())


def test_a_power_of_two_changes_no_bits() -> None:
    np.testing.assert_array_equal(trained(GradScaler("cpu", 2.0**10)), trained(None))
    np.testing.assert_array_equal(trained(GradScaler("cpu", enabled=False)), trained(None))
    np.testing.assert_allclose(trained(GradScaler("cpu", 3.0)), trained(None), rtol=1e-6)


def test_the_scale_falls_and_grows() -> None:
    layer, opt, scaler = made(init_scale=8.0, growth_interval=2, growth_factor=4.0)
    scales, left_out = [], []
    for factor in (1.0, np.inf, 1.0, 1.0, np.nan, 1.0, 1.0, 1.0):
        opt.zero_grad()
        with np.errstate(invalid="ignore"):
            scaler.scale(layer(nnmpi.ones(2, 3)).sum() * factor).backward()
        before = layer.bias.numpy().copy()
        scaler.step(opt)
        left_out.append(bool((before == layer.bias.numpy()).all()))
        scaler.update()
        scales.append(scaler.get_scale())
    assert scales == [8, 4, 4, 16, 8, 8, 32, 32]
    assert left_out == [False, True, False, False, True, False, False, False]


def test_the_scale_stays_finite() -> None:
    layer, opt, scaler = made(init_scale=2.0**127, growth_interval=1)
    scaler.scale(layer(nnmpi.ones(1, 3)).sum() * 2.0**-120).backward()
    scaler.step(opt)
    scaler.update()
    assert scaler.get_scale() == 2.0**127


def test_gradients_can_be_read_before_the_step() -> None:
    layer, opt, scaler = made(init_scale=1024.0)
    image = nnmpi.ones(3, requires_grad=True)
    of_tensor = optim.SGD([image], lr=1.0)
    loss = layer(image[None]).sum()
    scaler.scale(loss).backward()
    np.testing.assert_array_equal(layer.bias.grad, [1024, 1024])
    for optimizer in (opt, of_tensor):
        scaler.unscale_(optimizer)
    np.testing.assert_array_equal(layer.bias.grad, [1, 1])
    np.testing.assert_allclose(image.grad, layer.weight.numpy().sum(0), rtol=1e-6)
    wanted = 1 - image.grad.numpy()
    for optimizer in (opt, of_tensor):
        scaler.step(optimizer)
    np.testing.assert_allclose(image.detach(), wanted, rtol=1e-6)


def test_losses_in_float16_are_scaled_in_float32() -> None:
    scaler = GradScaler("cpu")
    loss = nnmpi.tensor(np.float16(3.0), requires_grad=True)
    a, (b, c) = scaler.scale([loss, (loss, loss * 2)])
    assert (a.item(), b.item(), c.item()) == (3 * 65536, 3 * 65536, 6 * 65536)
    assert a.dtype == "float32"


def test_losses_of_an_iterator_and_what_is_no_tensor() -> None:
    scaler, losses = GradScaler("cpu", 2.0), [nnmpi.tensor(3.0), nnmpi.tensor(5.0)]
    assert [y.item() for y in scaler.scale(y for y in losses)] == [6, 10]
    for wrong in (3.0, np.float32(3.0), {"loss": losses[0]}):
        with pytest.raises(ValueError, match=rf"a {type(wrong).__name__} is not a tensor"):
            scaler.scale(wrong)


def test_states() -> None:
    _, _, scaler = made(init_scale=8.0, growth_factor=3.0, backoff_factor=0.25, growth_interval=7)
    state = scaler.state_dict()
    assert state == {
        "scale": 8.0,
        "growth_factor": 3.0,
        "backoff_factor": 0.25,
        "growth_interval": 7,
        "_growth_tracker": 0,
    }
    other = GradScaler("cpu")
    other.load_state_dict(state)
    assert other.state_dict() == state
    getters = other.get_growth_factor, other.get_backoff_factor, other.get_growth_interval
    assert [get() for get in getters] == [3.0, 0.25, 7]
    other.set_growth_factor(2.0)
    other.set_backoff_factor(0.5)
    other.set_growth_interval(9)
    assert [get() for get in getters] == [2.0, 0.5, 9]
    other.update(new_scale=5.0)
    assert other.get_scale() == 5.0
    off = GradScaler("cpu", enabled=False)
    off.load_state_dict(state)
    assert (off.state_dict(), off.get_scale(), off.is_enabled()) == ({}, 1.0, False)
    with pytest.raises(RuntimeError, match="the state is empty"):
        other.load_state_dict(off.state_dict())


def test_calls_in_a_wrong_order() -> None:
    layer, opt, scaler = made()
    with pytest.raises(RuntimeError, match="no gradients were checked"):
        scaler.update()
    scaler.scale(layer(nnmpi.ones(1, 3)).sum()).backward()
    with pytest.raises(RuntimeError, match="takes no closure"):
        scaler.step(opt, closure=lambda: None)
    scaler.unscale_(opt)
    with pytest.raises(RuntimeError, match="divided by the scale already"):
        scaler.unscale_(opt)
    scaler.step(opt)
    for call in (scaler.step, scaler.unscale_):
        with pytest.raises(RuntimeError, match=r"call update\(\) before"):
            call(opt)
    scaler.update()
    with pytest.raises(ValueError, match=r"growth_factor=0\.5"):
        GradScaler("cpu", growth_factor=0.5)


def test_parameters_in_float16_are_refused() -> None:
    layer = nn.Linear(3, 2).to("float16")
    opt, scaler = optim.SGD(layer.parameters(), lr=0.1), GradScaler("cpu", 2.0)
    scaler.scale(layer(nnmpi.ones(1, 3).half()).sum()).backward()
    with pytest.raises(ValueError, match="keep parameters in float32"):
        scaler.step(opt)
