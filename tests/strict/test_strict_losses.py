"""The loss of scores in 16 bits on a device: as in float32, without a copy of the scores."""

import numpy as np
import pytest
from helpers.device import DEVICE, needs_device

from nnmpi import nn, tensor
from nnmpi.arrays.dtypes import named

pytestmark = needs_device


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("shape", [(5, 10), (5, 300), (4, 40, 3)], ids=str)
def test_scores_in_16_bits_have_a_loss_in_float32(shape: tuple[int, ...], dtype: str) -> None:
    rng = np.random.default_rng(0)
    z = (4 * rng.standard_normal(shape)).astype(named(dtype))
    labels = rng.integers(0, shape[1], (shape[0], *shape[2:]))
    of_wide = tensor(z.astype("float32"), requires_grad=True)
    of_halves = tensor(DEVICE.asarray(z), requires_grad=True, on=DEVICE)
    expected = nn.CrossEntropyLoss()(of_wide, labels)
    loss = nn.CrossEntropyLoss().wide_loss(of_halves, labels)
    assert loss.dtype == "float32"
    assert loss.item() == pytest.approx(expected.item(), rel=1e-6)
    expected.backward()
    loss.backward()
    assert of_halves.grad.dtype == dtype
    rounded = of_wide.grad.astype(named(dtype)).astype("float32")
    found = of_halves.grad_array.get().astype("float32")
    np.testing.assert_allclose(found, rounded, rtol=2.0**-7, atol=1e-7)
