"""Single time steps of recurrences: RNNCell, LSTMCell and GRUCell, for programs with their own loop
over time."""

from typing import Any

from nnmpi.addons.recurrent import ops as recurrent
from nnmpi.addons.recurrent.layers import NONLINEARITIES, PARAMETER_NAMES
from nnmpi.autograd import Tensor, apply, as_tensor
from nnmpi.nn import initial
from nnmpi.nn.layers.basic import check_choice, check_sizes
from nnmpi.nn.module import Module
from nnmpi.nn.parameter import Parameter
from nnmpi.nn.registries import constructor_options


class _Cell(Module):
    """The base class of single steps of a recurrence: x is (N, input_size) or (input_size,), and
    the state has hidden_size in place of input_size; it is zeros by default."""

    mode: str
    """The name of the recurrence, as PyTorch spells it."""

    def __init__(self, input_size: int, hidden_size: int, bias: bool = True) -> None:
        check_sizes(type(self).__name__, 1, input_size=input_size, hidden_size=hidden_size)
        self.input_size, self.hidden_size, self.bias = input_size, hidden_size, bool(bias)
        rows, draw = recurrent.CELLS[self.mode].gates * hidden_size, initial.fan_in(hidden_size)
        shapes = ((rows, input_size), (rows, hidden_size), (rows,), (rows,))
        for name, shape in zip(PARAMETER_NAMES[: 4 if bias else 2], shapes, strict=False):
            setattr(self, name, Parameter.lazy(shape, draw))

    def forward(self, input: Any, hx: Any = None) -> Any:
        """Returns the next state, given an input and the state `hx` before it: h, or the pair (h,
        c) of an LSTM."""
        x, states = as_tensor(input), recurrent.CELLS[self.mode].states
        given = (None,) * states if hx is None else tuple(hx) if states > 1 else (hx,)
        states_in = [None if s is None else as_tensor(s) for s in given]
        self._check(x, states_in, states)
        rows = [None if s is None else s.reshape(-1, self.hidden_size) for s in states_in]
        weights = (getattr(self, name, None) for name in PARAMETER_NAMES)
        step = x.reshape(1, -1, self.input_size)
        # the op returns the outputs, here of one step, and behind them the final states
        y = apply(recurrent.recurrent, step, *rows, *weights, mode=self.mode)
        shape = (*x.shape[:-1], self.hidden_size)
        after = tuple(y[1 + k].reshape(shape) for k in range(states))
        return after if states > 1 else after[0]

    def _check(self, x: Tensor, states_in: list[Tensor | None], states: int) -> None:
        wanted = (*x.shape[:-1], self.hidden_size)
        shapes = [s.shape for s in states_in if s is not None]
        if x.ndim not in (1, 2) or x.shape[-1] != self.input_size:
            raise ValueError(
                f"{type(self).__name__}: input of shape {x.shape}; it must be (N, K) or (K,) with "
                f"K = {self.input_size}"
            )
        if len(states_in) != states or any(shape != wanted for shape in shapes):
            raise ValueError(
                f"{type(self).__name__}: states of shapes {shapes}; give "
                f"{'h and c' if states > 1 else 'h'} of shape {wanted}"
            )

    def extra_repr(self) -> str:
        given = [f"{self.input_size}, {self.hidden_size}"]
        for p in constructor_options(type(self)):
            if p.default not in (p.empty, getattr(self, p.name)):
                given.append(f"{p.name}={getattr(self, p.name)!r}")
        return ", ".join(given)


class RNNCell(_Cell):
    """A step h = tanh(x W_ih^T + b_ih + h W_hh^T + b_hh), or ReLU in place of tanh."""

    def __init__(
        self, input_size: int, hidden_size: int, bias: bool = True, nonlinearity: str = "tanh"
    ) -> None:
        check_choice("RNNCell", "nonlinearity", nonlinearity, NONLINEARITIES)
        self.nonlinearity, self.mode = nonlinearity, f"RNN_{nonlinearity.upper()}"
        super().__init__(input_size, hidden_size, bias)


class LSTMCell(_Cell):
    """A step c = f c + i g, h = o tanh(c), with the gates i, f, g, o; the state is (h, c)."""

    mode = "LSTM"


class GRUCell(_Cell):
    """A step h = (1 - z) n + z h, with the gates r, z, n of x and h."""

    mode = "GRU"
