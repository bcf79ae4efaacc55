"""Test cases of ops: recurrent layers, in both directions, with and without padding."""

from collections.abc import Iterator
from itertools import product
from typing import Any

from helpers.ops.opcases import Case

from nnmpi.autograd.ops.recurrent import Sequences, recurrent

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
    for (name, (mode, cell, gates, states)), (
        how,
        lengths,
    ), reverse, plain, first in product(KINDS.items(), LENGTHS.items(), *[(False, True)] * 3):
        rows, biases = gates * H, (None, None) if plain else ((gates * H,), (gates * H,))
        initial = [None if plain else (N, H)] * states
        words = ", reverse" * reverse, ", plain" * plain, ", batch first" * first
        yield (
            f"{name}{how}{''.join(words)}",
            Case(
                recurrent,
                ((N, T, K) if first else (T, N, K), *initial, (rows, K), (rows, H), *biases),
                _oracle(cell, states),
                {"mode": mode, "sequences": Sequences(lengths, reverse, first)},
                smooth="relu" not in name,
            ),
        )


def _empty() -> Iterator[tuple[str, Case]]:
    for (name, (mode, cell, gates, states)), reverse, (what, shape) in product(
        KINDS.items(), (False, True), (("sequences", (T, 0, K)), ("positions", (0, N, K)))
    ):
        rows, initial = gates * H, [(shape[1], H)] * states
        yield (
            f"{name} of no {what}{', reverse' if reverse else ''}",
            Case(
                recurrent,
                (shape, *initial, (rows, K), (rows, H), (rows,), (rows,)),
                _oracle(cell, states),
                {"mode": mode, "sequences": Sequences(reverse=reverse)},
                smooth="relu" not in name,
            ),
        )


RECURRENT = dict(_cases()) | dict(_empty())
