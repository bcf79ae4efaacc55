"""RNNCell, LSTMCell and GRUCell: against PyTorch's, and against a layer over a whole sequence."""

from typing import Any

import numpy as np
import pytest
from helpers.ops.oracle import needs_torch, same_as_pytorch

import nnmpi
from nnmpi import nn

RNG = np.random.default_rng(0)
X, STATES = RNG.standard_normal((4, 3)), RNG.standard_normal((2, 4, 5))
CELLS: dict[str, tuple[str, dict[str, Any]]] = {
    "RNN": ("RNNCell", {}),
    "RNN of ReLU": ("RNNCell", {"nonlinearity": "relu"}),
    "LSTM": ("LSTMCell", {}),
    "GRU": ("GRUCell", {}),
    "GRU without biases": ("GRUCell", {"bias": False}),
}


def as_tuple(state: Any) -> tuple[Any, ...]:
    return state if isinstance(state, tuple) else (state,)


@needs_torch
@pytest.mark.parametrize("given", [False, True], ids=["from zero", "from given states"])
@pytest.mark.parametrize("rows", [slice(None), 0], ids=["a batch", "one sample"])
@pytest.mark.parametrize("case", CELLS)
def test_two_steps_are_pytorchs(case: str, rows: Any, given: bool) -> None:
    name, options = CELLS[case]

    def program(n: Any, cell: Any, x: Any, *states: Any) -> Any:
        start = states if name == "LSTMCell" else states[0]
        return as_tuple(cell(x, cell(x, start if given else None)))

    arrays = X[rows], *(s[rows] for s in STATES)
    make = lambda nn: getattr(nn, name)(3, 5, **options)  # noqa: E731
    same_as_pytorch(program, *arrays, make=make, rtol=1e-11, atol=1e-13)


def test_steps_are_those_of_a_layer() -> None:
    layer, cell = nn.LSTM(3, 5), nn.LSTMCell(3, 5)
    cell.load_state_dict({k.removesuffix("_l0"): v for k, v in layer.state_dict().items()})
    x, state = nnmpi.randn(6, 2, 3), None
    outputs = []
    for step in x:
        state = cell(step, state)
        outputs.append(state[0])
    expected, (_, c) = layer(x)
    np.testing.assert_allclose(
        nnmpi.stack(outputs).detach().numpy(), expected.detach().numpy(), 1e-5
    )
    np.testing.assert_allclose(state[1].detach().numpy(), c[0].detach().numpy(), 1e-5)


def test_its_repr_has_the_options_that_are_not_defaults() -> None:
    assert repr(nn.LSTMCell(3, 4)) == "LSTMCell(3, 4)"
    assert repr(nn.GRUCell(3, 4, bias=False)) == "GRUCell(3, 4, bias=False)"
    assert repr(nn.RNNCell(3, 4, True, "relu")) == "RNNCell(3, 4, nonlinearity='relu')"
