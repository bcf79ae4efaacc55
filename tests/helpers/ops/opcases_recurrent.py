"""Test cases of ops: recurrent layers, in both directions, with and without padding."""

from collections.abc import Iterator
from itertools import product
from typing import Any

from helpers.ops.opcases import Case

from nnmpi.addons.recurrent.ops import Sequences, recurrent

T, N, K, H = 5, 4, 3, 2
LENGTHS: dict[str, tuple[int, ...] | None] = {
    "": None,
    ", lengths": (2, 5, 1, 4),
    ", shorter than T": (3, 0, 3, 1),
}


def _oracle(name: str, states: int) -> Any:
    """PyTorch's cell, step by step on all sequences; masks leave out what is padding."""

    def run(t: Any, x: Any, *arguments: Any, **options: Any) -> Any:
        of = options["sequences"]
        x = x.swapaxes(0, 1) if of.batch_first else x
        cell, steps, sequences = getattr(t, name), len(x), x.shape[1]
        lengths = t.tensor(of.lengths or [steps] * sequences)
        zeros = t.zeros(sequences, H, dtype=x.dtype)
        s = [zeros if i is None else i for i in arguments[:states]]
        outputs = [zeros] * steps
        for k in reversed(range(steps)) if of.reverse else range(steps):
            found = cell(x[k], s if states > 1 else s[0], *arguments[states:])
            there = (lengths > k)[:, None]
            s = [t.where(there, *p) for p in zip(found if states > 1 else [found], s, strict=True)]
            outputs[k] = t.where(there, s[0], zeros)
        unused = sum(a.sum() for a in (x, *arguments) if a is not None) * 0  # of no positions
        return t.stack([*outputs, *s]) + unused

    return run


KINDS: dict[str, tuple[str, str, int, int]] = {
    "lstm": ("LSTM", "lstm_cell", 4, 2),
    "gru": ("GRU", "gru_cell", 3, 1),
    "rnn": ("RNN_TANH", "rnn_tanh_cell", 1, 1),
    "rnn of relu": ("RNN_RELU", "rnn_relu_cell", 1, 1),
}
"""The mode of the op, PyTorch's cell, and the numbers of gates and states."""


def _cases() -> Iterator[tuple[str, Case]]:
    ways = [*LENGTHS.items()], (False, True), (False, True), (False, True)
    for name, (how, lengths), reverse, plain, first in product(KINDS, *ways):
        words = ", reverse" * reverse, ", plain" * plain, ", batch first" * first
        shape, sequences = (N, T, K) if first else (T, N, K), Sequences(lengths, reverse, first)
        yield f"{name}{how}{''.join(words)}", _case(name, shape, N, sequences, plain)
    empty = ("sequences", (T, 0, K)), ("positions", (0, N, K))
    for name, reverse, (what, shape) in product(KINDS, (False, True), empty):
        case = _case(name, shape, shape[1], Sequences(reverse=reverse))
        yield f"{name} of no {what}{', reverse' if reverse else ''}", case


def _case(
    name: str, shape: tuple[int, ...], n: int, sequences: Sequences, plain: bool = False
) -> Case:
    """Of inputs of a shape, with n sequences; a plain case has neither states nor biases."""
    mode, cell, gates, states = KINDS[name]
    rows = gates * H
    given = *[(n, H)] * states, (rows, K), (rows, H), (rows,), (rows,)
    bare = *[None] * states, (rows, K), (rows, H), None, None
    args, options = (shape, *(bare if plain else given)), {"mode": mode, "sequences": sequences}
    return Case(recurrent, args, _oracle(cell, states), options, smooth="relu" not in name)


RECURRENT = dict(_cases())
