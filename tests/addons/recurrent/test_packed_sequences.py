"""`nn.utils.rnn`: padded and packed sequences, beside PyTorch's."""

from typing import Any

import numpy as np
import pytest
from helpers.ops.oracle import needs_torch, same_as_pytorch

RNG = np.random.default_rng(0)
LENGTHS = [3, 5, 1, 5]
ROWS = [RNG.standard_normal((n, 2)) for n in LENGTHS]


def rows_of(n: Any) -> list[Any]:
    return [n.tensor(row) for row in ROWS]


@needs_torch
@pytest.mark.parametrize("batch_first", [False, True])
@pytest.mark.parametrize("side", ["right", "left"])
def test_sequences_are_padded_as_pytorchs(batch_first: bool, side: str) -> None:
    def program(n: Any) -> Any:
        rnn, rows = n.nn.utils.rnn, rows_of(n)
        cut = rnn.unpad_sequence(rnn.pad_sequence(rows), n.tensor(LENGTHS))
        return rnn.pad_sequence(rows, batch_first, 7.0, side), *cut

    same_as_pytorch(program)


@needs_torch
@pytest.mark.parametrize("batch_first", [False, True])
def test_packed_sequences_are_pytorchs(batch_first: bool) -> None:
    def program(n: Any) -> Any:
        rnn, rows = n.nn.utils.rnn, rows_of(n)
        padded = rnn.pad_sequence(rows, batch_first)
        packed = rnn.pack_padded_sequence(padded, n.tensor(LENGTHS), batch_first, False)
        shorter = rnn.pack_sequence(sorted(rows, key=len)[::-1])
        again = rnn.pad_packed_sequence(packed, not batch_first, -1.0, 8)
        return packed.batch_sizes, packed.data, *again, shorter.data

    same_as_pytorch(program)


@needs_torch
@pytest.mark.parametrize("mode", ["RNN", "LSTM", "GRU"])
@pytest.mark.parametrize("batch_first", [False, True])
def test_layers_take_and_return_packed_sequences(mode: str, batch_first: bool) -> None:
    options = {"num_layers": 2, "bidirectional": True, "batch_first": batch_first}

    def program(n: Any, layer: Any, *rows: Any) -> Any:
        rnn = n.nn.utils.rnn
        x = rnn.pad_sequence(rows, batch_first)
        y, states = layer(rnn.pack_padded_sequence(x, LENGTHS, batch_first, enforce_sorted=False))
        last = states[0] if mode == "LSTM" else states
        return *rnn.pad_packed_sequence(y, batch_first=True), last, y.data

    make = lambda nn: getattr(nn, mode)(2, 3, **options)  # noqa: E731
    same_as_pytorch(program, *ROWS, make=make, rtol=1e-9, atol=1e-12)
