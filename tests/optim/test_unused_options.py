"""Options of PyTorch's optimizers that change nothing, and those that do not exist."""

import warnings
from typing import Any

import numpy as np
import pytest
from helpers.datafiles import refused
from helpers.programs import printed

from nnmpi import nn, optim

NAMES = ["SGD", "Adam", "AdamW", "RMSprop", "Adadelta", "Adagrad", "NAdam", "RAdam"]
NAMES += ["Adamax", "ASGD"]


def made(name: str, **options: Any) -> optim.Optimizer:
    kind: Any = getattr(optim, name)
    opt: optim.Optimizer = kind(nn.Linear(2, 2).parameters(), **options)
    return opt


@pytest.mark.parametrize("name", [*NAMES, "Rprop"])
def test_options_on_how_it_computes_change_nothing(name: str) -> None:
    with pytest.warns(UserWarning, match="foreach, fused and capturable change nothing"):
        opt = made(name, foreach=True, fused=True, capturable=False)
    assert opt.defaults == made(name).defaults
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        made(name, foreach=None, fused=False, maximize=False, differentiable=False)


def test_it_is_said_once() -> None:
    program = (
        "from nnmpi import nn, optim; import sys; sys.stderr = sys.stdout\n"
        "for name in ('SGD', 'Adam'):\n"
        "    for i in range(3): getattr(optim, name)(nn.Linear(2, 2).parameters(), fused=True)"
    )
    assert printed(program).count("change nothing") == 1


@pytest.mark.parametrize("name", NAMES)
def test_other_options_are_refused(name: str) -> None:
    with refused(f"{name}: leave out differentiable=True"):
        made(name, differentiable=True)
    with pytest.raises(TypeError, match=f"{name} has no option 'weight_decy'; did you mean weight"):
        made(name, weight_decy=0.1)


def test_a_rate_may_be_a_tensor() -> None:
    layer = nn.Linear(2, 2)
    opt: Any = optim.SGD(layer.parameters(), lr=np.array(0.5))
    layer(np.ones((1, 2), "float32")).sum().backward()
    before = layer.bias.data.copy()
    opt.step()
    np.testing.assert_array_equal(layer.bias.data, before - 0.5)
