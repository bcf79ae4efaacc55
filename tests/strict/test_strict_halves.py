"""Norms, products and losses in 16 bits on a device: their sums are in float32."""

import numpy as np
import pytest
from helpers.device import DEVICE, needs_device

import nnmpi
from nnmpi import nn
from nnmpi.arrays import backend
from nnmpi.arrays.backend import CPU, Backend
from nnmpi.arrays.dtypes import HALVES, named

pytestmark = needs_device


@pytest.mark.parametrize("on", [CPU, DEVICE], ids=["host", "device"])
@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("order", [2.0, 3.0])
def test_a_norm_to_clip_by_has_the_digits_of_float32(on: Backend, dtype: str, order: float) -> None:
    model = nn.Linear(1000, 1, bias=False).to(named(dtype), on)
    (p,) = model.parameters()
    p.grad = on.asarray(np.full((1, 1000), 10, named(dtype)))
    norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0, order)
    np.testing.assert_allclose(backend.to_host(norm), 10 * 1000 ** (1 / order), rtol=1e-6)
    clipped = backend.to_host(p.grad_array).astype("float64")
    np.testing.assert_allclose(clipped, 1000 ** (-1 / order), rtol=2**-8)


@pytest.mark.parametrize("dtype", HALVES)
def test_a_product_of_a_row_and_a_column_is_summed_in_float32(dtype: str) -> None:
    rng, layer = np.random.default_rng(0), nn.Linear(4096, 1, bias=False).to(named(dtype), DEVICE)
    x, w = (rng.standard_normal((1, 4096)).astype(named(dtype)) for _ in range(2))
    x[0, -1], w[0, -1] = 1, -(x[0, :-1].astype("d") @ w[0, :-1].astype("d"))  # they nearly cancel
    layer.weight.data[...] = DEVICE.asarray(w)
    y = backend.to_host(layer(nnmpi.tensor(x, on=DEVICE)).array).astype("d")
    exact = x.astype("d") @ w.T.astype("d")
    assert abs(y - exact) <= 2**-8 * abs(exact) + 1e-4


@pytest.mark.one_in(2)
@pytest.mark.parametrize("dtype", HALVES)
def test_losses_are_summed_in_float32(dtype: str) -> None:
    scores = nnmpi.tensor(np.full((3000, 2), -30, named(dtype)), on=DEVICE)
    labels = DEVICE.asarray(np.zeros(3000, "int64"))
    assert float(nn.NLLLoss()(scores, labels).numpy()) == 30
