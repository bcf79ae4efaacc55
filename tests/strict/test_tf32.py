"""--tf32: off unless it is asked for, whatever ran in the process before."""

import numpy as np
import pytest
from emulator import machine
from helpers.device import DEVICE, needs_device, needs_emulator

import nnmpi
from nnmpi import backend, nn
from nnmpi.backend import CPU
from nnmpi.comm import comm_self
from nnmpi.kernels import norm

pytestmark = needs_device


def prepared(monkeypatch: pytest.MonkeyPatch, **options: bool) -> None:
    """A trainer on the device with these options, which is set up and not run."""
    monkeypatch.setattr(backend, "get", lambda device: DEVICE)
    config = nnmpi.Config(device="cuda", steps=1, **options)
    data = np.ones((8, 4), "float32"), np.arange(8) % 3
    nnmpi.Trainer(config, lambda: nn.Linear(4, 3), data, comm_self())


def test_it_is_off_unless_it_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not backend.allows_tf32(DEVICE.xp)
    prepared(monkeypatch, tf32=True)
    assert backend.allows_tf32(DEVICE.xp)
    prepared(monkeypatch)
    assert not backend.allows_tf32(DEVICE.xp)


def test_a_cpu_never_does() -> None:
    backend.allow_tf32(CPU, True)
    assert not backend.allows_tf32(DEVICE.xp)


@needs_emulator
def test_sums_of_normalisation_are_no_products() -> None:
    """Of what no kernel in CUDA takes: factors of a product would lose digits to TF32."""
    x = DEVICE.asarray(np.random.default_rng(0).standard_normal((3, 50, 4)).astype("float32"))
    mean, m2 = (DEVICE.xp.empty((3, 4), "float32") for _ in range(2))
    with machine.noting() as calls:
        norm.moments_loop.reference(x, mean, m2)
    assert ("library", "gemm") not in calls
    np.testing.assert_allclose(backend.to_host(mean), backend.to_host(x).mean(1), atol=1e-6)
