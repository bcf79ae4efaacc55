"""Recurrent layers: all steps of one layer in one direction are one op.

    x ──► x W_ih^T + b_ih of all steps ──► z        one product
                                           │
    h ──► h W_hh^T + b_hh ──► u ──────► a step ──► h, c ──► the next step

If z and u are only added, b_hh is in z, too. Then a step is one product and one kernel: it writes h
where the outputs are, and the product of its gradients is added where the step before reads them.

The backward pass keeps the gradients of z of all steps, so that the gradients of the weights and
of x are one product each. If x has equal rows, such as the words of a text, each distinct row is
multiplied once, and the gradients of z are first summed over equal rows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from nnmpi.addons.recurrent import kernels as kernels
from nnmpi.addons.recurrent.distinct_rows import DistinctRows, distinct
from nnmpi.addons.recurrent.packed_rows import PackedRows, packed
from nnmpi.arrays.backend import Array, of, xp_of
from nnmpi.arrays.dtypes import is_half
from nnmpi.arrays.kernels import PlacedGradients, Result, Vjp, column_sum, progress_hook
from nnmpi.arrays.kernels.linear import (
    add_outputs,
    gradients,
    linear_outputs,
    outputs,
    prefers_compiled,
)
from nnmpi.autograd.ops.linear import check_dtype
from nnmpi.autograd.ops.lookup import TableGradient


class Cell(NamedTuple):
    """A type of recurrent cell, with the kernels of nnmpi/addons/recurrent/kernels.py.

    gates   number of gates, each as long as a state
    states  number of states: 1 for h, 2 for h and c
    kept    number of further arrays, as long as a state, that the backward pass needs
    sides   1 if z and u are only added, and so have one gradient, and h is used for nothing but u;
            else 2 (GRU)
    """

    gates: int
    states: int
    kept: int
    sides: int
    step: Callable[..., None]
    gradient: Callable[..., None]


CELLS = {
    "LSTM": Cell(4, 2, 2, 1, kernels.lstm_loop, kernels.lstm_gradient_loop),
    "GRU": Cell(3, 1, 2, 2, kernels.gru_loop, kernels.gru_gradient_loop),
    "RNN_TANH": Cell(1, 1, 0, 1, kernels.tanh_step, kernels.tanh_gradient),
    "RNN_RELU": Cell(1, 1, 0, 1, kernels.relu_step, kernels.relu_gradient),
}
"""The cells, by PyTorch's names of their modes."""


class Sequences(NamedTuple):
    """How the sequences of an input x (T, N, K) are arranged and read.

    lengths      of the sequences; None if all have length T
    reverse      True to read from the last position to the first
    batch_first  True if x is (N, T, K)
    words        integers in the shape of x without its last axis: equal words mean equal rows of x
    """

    lengths: Sequence[int] | None = None
    reverse: bool = False
    batch_first: bool = False
    words: Array | None = None

    def time_first(self, x: Array) -> Array:
        """Returns a view with the first two axes exchanged, if x is batch-first; else x."""
        return x.swapaxes(0, 1) if self.batch_first else x


ALL = Sequences()


class _Gradients(NamedTuple):
    """The gradients that the backward pass of a recurrent layer computes first; the gradients of x
    and of the weights are then products of these.

    z        of x W_ih^T + b_ih of all steps, (P, G H)
    u        of h W_hh^T + b_hh of all steps, (P, G H)
    states   of the initial states
    biases   of b_ih and b_hh
    sums     z summed over equal rows of x, (Q, G H)
    """

    z: Array
    u: Array
    states: list[Array]
    biases: list[Array]
    sums: Array


class _Forward(NamedTuple):
    """A forward pass of a recurrent layer: what its backward pass needs, and the vjps of x and
    weights.

    rows      where each step is stored
    unique    the distinct rows of x; None: each row is multiplied
    inputs    the rows that were multiplied by W_ih
    z         the gates of all steps
    saved     the other arrays that the cell keeps
    h_before  h before each step
    """

    cell: Cell
    rows: PackedRows
    sequences: Sequences
    unique: DistinctRows | None
    shape: tuple[int, ...]
    w_ih: Array
    w_hh: Array
    inputs: Array
    z: Array
    saved: Sequence[Array]
    h_before: Array

    def prepare(self, g: Array, needs: Sequence[bool], memory: Sequence[Any]) -> _Gradients:
        """Runs the steps backward: all that is left are products, one for each vjp."""
        z, unique = self.z, self.unique
        d = [xp_of(z).empty(z.shape, z.dtype) for _ in range(self.cell.sides)]
        dz = _through_time(self.cell, self.rows, g, self.w_hh, z, self.saved, d, needs[1])
        sums, of_biases = d[0] if unique is None else unique.summed(d[0]), list[Array]()
        if True in needs[-2:]:
            outs = (None if m is None or m.dtype != z.dtype else m for m in memory[-2:])
            of_biases += map(column_sum, (sums, *d[1:]), outs)
        return _Gradients(d[0], d[-1], dz, of_biases, sums)

    def of_x(self, g: _Gradients) -> Array:
        """Returns the gradient of x."""
        xp, dtype = xp_of(g.z), self.z.dtype
        of_rows, dx = xp.empty((len(g.z), self.w_ih.shape[1]), dtype), xp.empty(self.shape, dtype)
        gradients(g.z, self.w_ih, None, of_rows, None, None)
        self.rows.unpack(of_rows, self.sequences.time_first(dx))
        return dx

    def vjp_x(self, g: _Gradients, out: Array | None) -> Any:
        if self.unique is None:
            return self.of_x(g)
        dz = xp_of(g.sums).empty((len(g.sums), self.w_ih.shape[1]), self.z.dtype)
        gradients(g.sums, self.w_ih, None, dz, None, None)
        return TableGradient(dz, self.unique.values, lambda: self.of_x(g))

    def vjp_w_ih(self, g: _Gradients, out: Array | None) -> Array:
        dw = xp_of(g.z).empty(self.w_ih.shape, self.z.dtype) if out is None else out
        gradients(g.sums, self.w_ih, self.inputs, None, dw, None)
        return dw

    def vjp_w_hh(self, g: _Gradients, out: Array | None) -> Array:
        dw = xp_of(g.z).empty(self.w_hh.shape, self.z.dtype) if out is None else out
        gradients(g.u, self.w_hh, self.h_before, None, dw, None)
        return dw


def recurrent(x: Array, *arrays: Any, mode: str, sequences: Sequences = ALL) -> Result:
    """The op of a recurrent layer: runs all steps of an LSTM, GRU or plain cell (`mode`) with S
    states.

    The value is (T + S, N, H): the outputs of all steps, then the final states.

    x       (T, N, K)
    mode    "LSTM", "GRU", "RNN_TANH" or "RNN_RELU"
    arrays  S initial states, (N, H) or None for zeros; w_ih (G H, K) and w_hh (G H, H) for G gates;
            b_ih and b_hh, (G H,) or None
    """
    cell, (*initial, w_ih, w_hh, b_ih, b_hh) = CELLS[mode], arrays
    xp, by_time = xp_of(x), sequences.time_first(x)
    check_dtype("recurrent layer", x.dtype, w_ih)
    (T, N, _), H = by_time.shape, w_hh.shape[1]
    rows = packed(T, N, sequences.lengths, sequences.reverse, xp)
    unique = (
        None
        if sequences.words is None
        else distinct(rows.pack(sequences.time_first(sequences.words)[..., None])[:, 0])
    )
    P = sum(n for _, n in rows.steps)
    z = xp.empty((P, cell.gates * H), x.dtype)
    saved = [xp.empty((P, H), x.dtype) for _ in range(cell.kept)]
    # an op has one value: the final states are stored after the outputs, and the first h before
    memory = xp.empty((1 + T + cell.states, N, H), x.dtype)
    value, y, h_before = memory[1:], *(xp.empty((P, H), x.dtype) for _ in range(2))
    if rows.at is None:
        y = value[:T].reshape(P, H)
        h_before = h_before if sequences.reverse else memory[:T].reshape(P, H)
    finals = value[T:] if rows.at is None else xp.empty((cell.states, N, H), x.dtype)
    states = [finals[k] for k in range(cell.states)]
    for state, given in zip(states, initial, strict=True):
        state[...] = 0 if given is None else rows.sorted(given)

    inputs = rows.pack(by_time) if unique is None else rows.take(by_time, unique.first)
    both = b_ih is not None and b_hh is not None and cell.sides == 1
    _products(inputs, w_ih, b_ih + b_hh if both else b_ih, z, unique)
    _in_time(cell, rows, z, (w_hh, None if both else b_hh), states, saved, h_before, y)
    if rows.at is not None:
        rows.unpack(y, value[:T])
        for k, s in enumerate(states):
            value[T + k] = rows.unsorted(s)
    done = _Forward(
        *(cell, rows, sequences, unique, x.shape, w_ih, w_hh),
        *(inputs, z, saved, h_before),
    )
    of_states = map(_of_state, range(cell.states))
    vjps = done.vjp_x, *of_states, done.vjp_w_ih, done.vjp_w_hh, _of_b_ih, _of_b_hh
    return Result(value, vjps, PlacedGradients(done.prepare))


def in_16_bits(args: Sequence[Any], options: Mapping[str, Any]) -> bool:
    """Returns whether the op computes in 16 bits within autocast. GRU, GRUCell and LSTMCell do not,
    as in PyTorch, if their initial state (c of an LSTMCell) is float32."""
    mode, is_layer = options["mode"], "sequences" in options
    if mode.startswith("RNN") or (mode == "LSTM" and is_layer):
        return True
    state = args[2 if mode == "LSTM" else 1]
    return is_half((args[0] if state is None else state).dtype)


def _of_state(k: int) -> Vjp:
    return lambda g, out: g.states[k]


def _of_b_ih(g: _Gradients, out: Array | None) -> Array:
    return g.biases[0]


def _of_b_hh(g: _Gradients, out: Array | None) -> Array:
    return g.biases[-1]


def _products(x: Array, w: Array, b: Array | None, z: Array, unique: DistinctRows | None) -> None:
    """Writes z = x W^T + b for the rows of all steps; with `unique`, x has only the distinct
    ones."""
    if unique is None:
        outputs(x, w, b, z, False)
    else:
        products = xp_of(x).empty((len(x), len(w)), x.dtype)
        outputs(x, w, b, products, False)
        unique.spread(products, z)


def _in_time(
    cell: Cell,
    rows: PackedRows,
    z: Array,
    recurrence: tuple[Array, Array | None],
    states: Sequence[Array],
    saved: Sequence[Array],
    h_before: Array,
    y: Array,
) -> None:
    """Runs all steps of a recurrent layer forward; writes the outputs y and what the backward pass
    needs.

    z holds the products of the inputs with W_ih, and is overwritten by the gates. `recurrence` is
    W_hh and b_hh; `states` are the initial states, which become the final ones. For the backward
    pass, `h_before` receives h before each step, and `saved` what the cell keeps besides.
    """
    (w, b), N, in_place = recurrence, len(states[0]), cell.sides == 1 and rows.at is None
    u, large = xp_of(z).empty((N, z.shape[1]), z.dtype), prefers_compiled(N, *w.shape)
    h, *others = states
    for k, (step, n) in enumerate(rows.steps):
        if not k or rows.at is not None:
            h_before[step] = h[:n]
        linear_outputs(h[:n], w, b, u[:n], False, large)
        h = y[step] if in_place else h
        cell.step(z[step], u[:n], *(a[step] for a in saved), h[:n], *(s[:n] for s in others))
        if not in_place:
            y[step] = h[:n]
    if h is not states[0]:
        states[0][...] = h
    if rows.at is None and len(rows.steps) > 1 and rows.steps[0][0].start:
        h_before[:-N] = y[N:]  # else h before a step is where the step before writes it


def _through_time(
    cell: Cell,
    rows: PackedRows,
    g: Array,
    w_hh: Array,
    z: Array,
    saved: Sequence[Array],
    d: Sequence[Array],
    of_initial: bool,
) -> list[Array]:
    """Runs all steps of a recurrent layer backward; returns the gradients of the initial states, of
    h if `of_initial`.

    g (T + states, N, H) is the gradient of the outputs and final states; z and `saved` are those of
    `_in_time`. Writes to d the gradients of the products with W_ih and, if they differ, with W_hh.
    """
    xp, T, is_host = xp_of(g), len(rows.steps), of(g).is_host
    # saves a device a kernel in each step; on the host, a copy of g costs more than that
    in_place = cell.sides == 1 and rows.at is None and not is_host
    sums = g.copy() if in_place else g
    of_outputs = rows.pack(sums[:T])
    states = [sums[T + k] if in_place else rows.sorted(g[T + k]) for k in range(cell.states)]
    products = xp.empty_like(states[0])
    back = xp.ascontiguousarray(w_hh.T) if is_host else w_hh.T  # a device takes either
    progress, large = progress_hook.get(), prefers_compiled(len(products), *back.shape)
    for t in reversed(range(T)):
        # rows are sorted by length: the sequences that have this step are the first n
        step, n = rows.steps[t]
        if not in_place or t == T - 1:
            states[0][:n] += of_outputs[step]
        arrays = (z[step], *(k[step] for k in saved), *(side[step] for side in d))
        cell.gradient(*(state[:n] for state in states), *arrays)
        if in_place and t:
            states[0] = of_outputs[rows.steps[t - 1][0]]
        if t or of_initial:
            add_outputs(d[-1][step], back, states[0][:n], products[:n], large)
        progress()
    return [rows.unsorted(state) for state in states]
