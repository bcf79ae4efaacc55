"""Layers at numbers of 1e30, whose squares overflow: compiled, and as NumPy computes."""

from collections.abc import Callable

import numpy as np
import pytest

import nnmpi
from nnmpi import nn
from nnmpi.arrays.native.table import KERNELS

BECOME_0: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "BatchNorm2d": (lambda: nn.BatchNorm2d(4), (8, 4, 5, 5)),
    "GroupNorm": (lambda: nn.GroupNorm(2, 4), (8, 4, 5, 5)),
    "LayerNorm": (lambda: nn.LayerNorm(16), (8, 16)),
    "RMSNorm": (lambda: nn.RMSNorm(16), (8, 16)),
}
"""The variance is infinite, as in float32 anywhere, so what is divided by its root is 0."""
STAY_FINITE: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "Softmax": (lambda: nn.Softmax(dim=-1), (8, 16)),
    "LogSoftmax": (lambda: nn.LogSoftmax(dim=-1), (8, 16)),
}


def results(make: Callable[[], nn.Module], shape: tuple[int, ...]) -> list[np.ndarray]:
    """The output and the gradient of the input."""
    rng = np.random.default_rng(0)
    x, g = (rng.standard_normal(shape).astype("float32") for _ in range(2))
    t = nnmpi.tensor(x * np.float32(1e30), requires_grad=True)
    with np.errstate(over="ignore"):
        y = make()(t)
        (y * nnmpi.tensor(g)).sum().backward()
    return [y.numpy(), np.asarray(t.grad)]


@pytest.mark.parametrize("name", [*BECOME_0, *STAY_FINITE])
def test_compiled_kernels_and_numpy_agree(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    case = {**BECOME_0, **STAY_FINITE}[name]
    compiled = results(*case)
    for kernel in KERNELS.values():
        monkeypatch.setattr(kernel, "compiled", None)
    for a, b in zip(compiled, results(*case), strict=True):
        assert np.isfinite(a).all()
        np.testing.assert_allclose(a, b, rtol=1e-6)
        assert not (name in BECOME_0 and a.any())
