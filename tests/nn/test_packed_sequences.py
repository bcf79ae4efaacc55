"""`nn.utils.rnn`: padded and packed sequences, beside PyTorch's."""

from typing import Any

import numpy as np
import pytest
from helpers.ops.oracle import needs_torch, pytorch

import nnmpi
from nnmpi import nn
from nnmpi.nn.utils import rnn

RNG = np.random.default_rng(0)
LENGTHS = [3, 5, 1, 5]
ROWS = [RNG.standard_normal((n, 2)) for n in LENGTHS]


def both() -> Any:
    torch = pytorch()
    return (rnn, nnmpi.tensor, nn), (torch.nn.utils.rnn, torch.tensor, torch.nn)


def plain(t: Any) -> np.ndarray:
    return np.asarray(t.detach().numpy())


@needs_torch
@pytest.mark.parametrize("batch_first", [False, True])
@pytest.mark.parametrize("side", ["right", "left"])
def test_sequences_are_padded_as_pytorchs(batch_first: bool, side: str) -> None:
    padded = [
        library.pad_sequence([make(r) for r in ROWS], batch_first, 7.0, side)
        for library, make, _ in both()
    ]
    np.testing.assert_array_equal(*map(plain, padded))
    cut = [
        library.unpad_sequence(library.pad_sequence([make(r) for r in ROWS]), make(LENGTHS))
        for library, make, _ in both()
    ]
    for a, b in zip(*cut, strict=True):
        np.testing.assert_array_equal(plain(a), plain(b))


@needs_torch
@pytest.mark.parametrize("batch_first", [False, True])
def test_packed_sequences_are_pytorchs(batch_first: bool) -> None:
    found = []
    for library, make, _ in both():
        padded = library.pad_sequence([make(r) for r in ROWS], batch_first)
        packed = library.pack_padded_sequence(padded, make(LENGTHS), batch_first, False)
        again, lengths = library.pad_packed_sequence(packed, not batch_first, -1.0, 8)
        shorter = library.pack_sequence([make(r) for r in sorted(ROWS, key=len)[::-1]])
        found.append([*map(plain, (packed.batch_sizes, packed.data, again, lengths, shorter.data))])
    for a, b in zip(*found, strict=True):
        np.testing.assert_array_equal(a, b)


@needs_torch
@pytest.mark.parametrize("mode", ["RNN", "LSTM", "GRU"])
@pytest.mark.parametrize("batch_first", [False, True])
def test_layers_take_and_return_packed_sequences(mode: str, batch_first: bool) -> None:
    results = []
    options = {"num_layers": 2, "bidirectional": True, "batch_first": batch_first}
    theirs = getattr(pytorch().nn, mode)(2, 3, **options).double()
    ours = getattr(nn, mode)(2, 3, **options).to("float64")
    ours.load_state_dict({k: v.numpy() for k, v in theirs.state_dict().items()})
    for (library, make, _), layer in zip(both(), (ours, theirs), strict=True):
        x = library.pad_sequence([make(r) for r in ROWS], batch_first)
        x.requires_grad = True
        packed = library.pack_padded_sequence(x, LENGTHS, batch_first, enforce_sorted=False)
        y, states = layer(packed)
        padded, lengths = library.pad_packed_sequence(y, batch_first=True)
        last = states[0] if mode == "LSTM" else states
        ((padded**2).sum() + (last**3).sum()).backward()
        arrays = [*map(plain, (padded, lengths, last, y.data)), np.asarray(x.grad)]
        results.append([*arrays, *(np.asarray(p.grad) for p in layer.parameters())])
    for a, b in zip(*results, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-12)
