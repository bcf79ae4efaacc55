"""Recurrent layers: RNN, LSTM and GRU, with one or several layers, in one direction or in both."""

from collections.abc import Iterator, Sequence
from typing import Any

from nnmpi.addons.recurrent import ops as recurrent
from nnmpi.addons.recurrent.packed import PackedSequence
from nnmpi.arrays import backend
from nnmpi.arrays.backend import Array
from nnmpi.autograd import Tensor, apply, as_tensor, on_host
from nnmpi.autograd.functional import concatenate
from nnmpi.autograd.lookup import EmbeddingResult
from nnmpi.autograd.ops import elementwise
from nnmpi.nn import initial
from nnmpi.nn.layers.basic import (
    check_choice,
    check_probability,
    check_sizes,
    dropout_key,
    dropout_mask,
)
from nnmpi.nn.module import Module
from nnmpi.nn.parameter import Parameter
from nnmpi.nn.passes import current_pass
from nnmpi.nn.registries import constructor_options

PARAMETER_NAMES = "weight_ih", "weight_hh", "bias_ih", "bias_hh"
"""The parameters of a layer in one direction, in the order of PyTorch's state dict."""

NONLINEARITIES = "tanh", "relu"

State = Tensor | tuple[Tensor, ...]
"""The state h, or (h, c), of shape (num_layers * directions, N, hidden_size) each."""


class _Recurrent(Module):
    """The base class of recurrent layers, which run over sequences; each layer and direction has
    PyTorch's parameters.

    x is (T, N, input_size), or (N, T, input_size) with `batch_first`; the outputs have hidden_size
    * directions channels. Weights and biases start uniform within 1 / sqrt(hidden_size).

    lengths   (N,) integers from 0 to T: positions behind the length of a sequence are padding. They
              change no state, their outputs are 0, the reverse direction starts before them, and
              the final states are those at the last position: the values and gradients of PyTorch's
              pack_padded_sequence.
    dropout   applied to the outputs of each layer but the last. Its masks are keyed by sample and
              position, as in Dropout.
    """

    mode: str
    """The name of the recurrence, as PyTorch spells it."""

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        bias: bool = True,
        batch_first: bool = False,
        dropout: float = 0.0,
        bidirectional: bool = False,
        *,
        proj_size: int = 0,
    ) -> None:
        name = type(self).__name__
        if proj_size:
            raise ValueError(
                f"{name}: proj_size={proj_size} is not supported: leave it out, and put an "
                "nn.Linear after the layer"
            )
        check_sizes(name, 1, input_size=input_size, hidden_size=hidden_size, num_layers=num_layers)
        check_probability(name, "dropout", dropout)
        self.input_size, self.hidden_size, self.num_layers = input_size, hidden_size, num_layers
        self.bias, self.batch_first, self.dropout = bias, batch_first, float(dropout)
        self.bidirectional = bidirectional
        rows, draw = self.cell.gates * hidden_size, initial.fan_in(hidden_size)
        # the order of assignment is that of PyTorch's state dict
        for k in range(num_layers):
            K = input_size if not k else hidden_size * self.directions
            shapes = (rows, K), (rows, hidden_size), (rows,), (rows,)
            for end in self._suffixes(k):
                for kind, shape in zip(PARAMETER_NAMES, shapes[: 4 if bias else 2], strict=False):
                    setattr(self, kind + end, Parameter.lazy(shape, draw))

    @property
    def cell(self) -> recurrent.Cell:
        """The function of one time step for the layer's `mode`, such as "LSTM" or "RNN_TANH"."""
        return recurrent.CELLS[self.mode]

    @property
    def directions(self) -> int:
        """2 if sequences are read backwards too, else 1."""
        return 2 if self.bidirectional else 1

    def _suffixes(self, layer: int) -> Iterator[str]:
        """Yields the end of parameter names for each direction, such as "_l0" and "_l0_reverse"."""
        yield f"_l{layer}"
        if self.bidirectional:
            yield f"_l{layer}_reverse"

    def forward(self, x: Any, hx: State | None = None, lengths: Any = None) -> tuple[Any, State]:
        """Returns (outputs of the last layer, final states of all layers) for the initial states
        `hx`, by default zeros; an LSTM has a pair of states. For a packed sequence the outputs are
        packed too."""
        if isinstance(x, PackedSequence):
            y, states = self.forward(x.padded(self.batch_first), hx, x.lengths)
            return PackedSequence(y, x.lengths, self.batch_first), states
        if current_pass.get() is None:  # called without Module.__call__, which sets the pass
            result: tuple[Tensor, State] = self(x, hx, lengths)
            return result
        x = as_tensor(x)
        self._check_input(x)
        T, N = x.shape[1::-1] if self.batch_first else x.shape[:2]
        lasts = None if lengths is None else self._lengths(lengths, T, N)
        sequences = recurrent.Sequences(lasts, False, self.batch_first, self._equal_rows(x))
        initial, final = self._initial(hx, N), list[Tensor]()
        for k in range(self.num_layers):
            x = self._dropped(x, k) if k else x
            outputs = []
            for end in self._suffixes(k):
                initial_states = [None if s is None else s[len(final)] for s in initial]
                weights = (getattr(self, f"{kind}{end}", None) for kind in PARAMETER_NAMES)
                how = {"mode": self.mode, "sequences": sequences._replace(reverse="reverse" in end)}
                y = apply(recurrent.recurrent, x, *initial_states, *weights, **how)
                # the op returns the outputs, and behind them the final state, in one array
                outputs.append(y[:T])
                final.append(y[T:])
            x = outputs[0] if len(outputs) == 1 else concatenate(outputs, 2)
            # outputs of a layer are (T, N, C), and no longer rows of an embedding
            sequences = recurrent.Sequences(lasts)
        states = tuple(_joined([s[k : k + 1] for s in final]) for k in range(self.cell.states))
        outcome = x.transpose(1, 0, 2) if self.batch_first else x
        return outcome, states if len(states) > 1 else states[0]

    def flatten_parameters(self) -> None:
        """Does nothing, as in PyTorch on a CPU: the parameters of a model are in one buffer."""

    def _check_input(self, x: Tensor) -> None:
        axes = "(N, T, K)" if self.batch_first else "(T, N, K)"
        if x.ndim != 3 or x.shape[2] != self.input_size:
            raise ValueError(
                f"{type(self).__name__}: input of shape {x.shape}; it must be {axes} with "
                f"K = {self.input_size}"
            )

    def _equal_rows(self, x: Tensor) -> Array | None:
        """Returns the integers that an Embedding has looked up to make x, since equal rows are
        multiplied only once; None if x was made in another way, or if weights share memory in turn
        (`Store.rotates`), as with ZeRO 3: the gradients of all rows may be needed later then."""
        rotates = any(p.store is not None and p.store.rotates for p in self.parameters())
        return x.index if isinstance(x, EmbeddingResult) and not rotates else None

    def _initial(self, hx: State | None, N: int) -> Sequence[Tensor | None]:
        """Returns the initial states, each (layers * directions, N, H), or None; checks shapes."""
        if hx is None:
            return (None,) * self.cell.states
        given = tuple(hx) if isinstance(hx, tuple | list) else (hx,)
        shape = (self.num_layers * self.directions, N, self.hidden_size)
        shapes = [as_tensor(s).shape for s in given]
        if shapes != [shape] * self.cell.states:
            raise ValueError(
                f"{type(self).__name__}: initial states of shapes {shapes}; give "
                f"{'h and c' if self.cell.states > 1 else 'h'} of shape {shape}"
            )
        return [as_tensor(s) for s in given]

    def _lengths(self, lengths: Any, T: int, N: int) -> tuple[int, ...]:
        """Returns the lengths of the sequences as Python integers; raises ValueError unless there
        are N of them, from 0 to T. Waits for the device if they are on one."""
        given = on_host(lengths)
        bad = given.shape != (N,) or given.dtype.kind not in "iu"
        if bad or (N and not 0 <= given.min() <= given.max() <= T):
            raise ValueError(
                f"{type(self).__name__}: lengths {given.tolist()!s:.60}; give {N} integers, one "
                f"per sequence, from 0 to {T}"
            )
        return tuple(given.tolist())

    def _dropped(self, x: Tensor, layer: int) -> Tensor:
        """Returns the inputs x (T, N, C) of a layer with dropout applied, in training."""
        if not self.training or self.dropout == 0:
            return x
        T, N, C = x.shape
        path = f"{self.path}.{layer}" if self.path else str(layer)
        xp = backend.xp_of(x.array)
        index = xp.arange(T * C, dtype="uint32")
        key = dropout_key(self, path, x.array.transpose(1, 0, 2))
        mask = dropout_mask(*key, index, self.dropout, x.dtype, xp).reshape(N, T, C)
        return apply(elementwise.multiply, x, mask.transpose(1, 0, 2))

    def extra_repr(self) -> str:
        given = [f"{self.input_size}, {self.hidden_size}"]
        for p in constructor_options(type(self)):
            if p.default not in (p.empty, getattr(self, p.name, p.default)):
                given.append(f"{p.name}={getattr(self, p.name)!r}")
        return ", ".join(given)


def _joined(states: Sequence[Tensor]) -> Tensor:
    return states[0] if len(states) == 1 else concatenate(states, 0)


class RNN(_Recurrent):
    """The recurrence h = tanh(x W_ih^T + b_ih + h W_hh^T + b_hh), or ReLU in place of tanh."""

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        nonlinearity: str = "tanh",
        bias: bool = True,
        batch_first: bool = False,
        dropout: float = 0.0,
        bidirectional: bool = False,
    ) -> None:
        check_choice("RNN", "nonlinearity", nonlinearity, NONLINEARITIES)
        self.nonlinearity, self.mode = nonlinearity, f"RNN_{nonlinearity.upper()}"
        rest = bias, batch_first, dropout, bidirectional
        super().__init__(input_size, hidden_size, num_layers, *rest)


class LSTM(_Recurrent):
    """The recurrence c = f c + i g, h = o tanh(c), with the gates i, f, g, o; state (h, c)."""

    mode = "LSTM"


class GRU(_Recurrent):
    """The recurrence h = (1 - z) n + z h, with the gates r, z, n of x and h."""

    mode = "GRU"
