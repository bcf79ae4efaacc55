"""No op makes the host wait for a device, nor does a step (test_strict_budgets.py)."""

import numpy as np
import pytest
from helpers.device import DEVICE, needs_emulator, waits
from helpers.ops.opcases_all import CASES, each, is_leaf

from nnmpi.arrays.backend import Array
from nnmpi.autograd import Tensor

pytestmark = needs_emulator

OF_UNKNOWN_SIZE = "getitem, a mask"
"""How many numbers a mask chooses is to be read."""


@pytest.mark.one_in(120)
@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("name", [name for name in CASES if not name.startswith(OF_UNKNOWN_SIZE)])
def test_an_op_does_not_wait(name: str, dtype: str) -> None:
    case = CASES[name]

    def moved(a: np.ndarray) -> Array:
        return DEVICE.asarray(a.astype(dtype) if is_leaf(a) else a)

    args = [
        Tensor(moved(a), requires_grad=case.has_gradient) if is_leaf(a) else each(moved, a)
        for a in case.arrays(name)
    ]
    if not isinstance(args[0], Tensor) and not case.has_gradient:
        args[0] = Tensor(args[0])
    options = each(moved, dict(case.options))
    with waits(0):
        y = case.run(case.op, *args, **options)
        if any(isinstance(a, Tensor) and a.requires_grad for a in args):
            y.backward(DEVICE.xp.ones(y.shape, y.dtype))
