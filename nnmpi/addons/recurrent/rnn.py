"""PyTorch's `nn.utils.rnn`: sequences of different lengths as one tensor, padded or packed.

Here a packed sequence has a padded tensor and the lengths of its sequences, which recurrent layers
take as `lengths=`. Sequences keep their order, so they need not be sorted.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from nnmpi.addons.recurrent.packed import PackedSequence as PackedSequence
from nnmpi.addons.recurrent.packed import exchanged
from nnmpi.autograd import Tensor, as_tensor, on_host
from nnmpi.autograd.functional import concatenate, stack, tensor, where


def pad_sequence(
    sequences: Sequence[Any],
    batch_first: bool = False,
    padding_value: float = 0.0,
    padding_side: str = "right",
) -> Tensor:
    """Joins sequences (L, ...) of different lengths to one tensor (T, N, ...), or (N, T, ...) with
    `batch_first`, where T is the largest length. Shorter ones are filled with `padding_value`, at
    the end or, with padding_side="left", at the beginning."""
    given = [as_tensor(s) for s in sequences]
    if not given or padding_side not in ("right", "left"):
        raise ValueError(
            f"pad_sequence: {len(given)} sequences, padding_side={padding_side!r}: give at least "
            "one, and 'right' or 'left'"
        )
    T = max(len(s) for s in given)
    rows = []
    for s in given:
        fill = np.full((T - len(s), *s.shape[1:]), padding_value, s.dtype)
        ends = [s, fill] if padding_side == "right" else [fill, s]
        rows.append(concatenate(ends) if len(fill) else s)
    joined = stack(rows)
    return joined if batch_first else exchanged(joined)


def pack_padded_sequence(
    input: Any, lengths: Any, batch_first: bool = False, enforce_sorted: bool = True
) -> PackedSequence:
    """Packs padded sequences (T, N, ...), or (N, T, ...) with `batch_first`. They need not be
    sorted by length; `enforce_sorted` has no effect."""
    x, counts = as_tensor(input), np.asarray(on_host(lengths), "int64")
    T, N = x.shape[1::-1] if batch_first else x.shape[:2]
    if counts.shape != (N,) or counts.min(initial=1) < 1 or counts.max(initial=0) > T:
        raise ValueError(
            f"pack_padded_sequence: lengths {counts.tolist()} for {N} sequences of {T} positions: "
            f"give {N} numbers from 1 to {T}"
        )
    most = int(counts.max())
    kept = x if most == T else x[:, :most] if batch_first else x[:most]
    return PackedSequence(kept, counts, batch_first)


def pad_packed_sequence(
    sequence: PackedSequence,
    batch_first: bool = False,
    padding_value: float = 0.0,
    total_length: int | None = None,
) -> tuple[Tensor, Tensor]:
    """Returns the padded sequences, (T, N, ...) or with `batch_first` (N, T, ...), and their
    lengths; T is the largest length, or `total_length`."""
    x, lengths = sequence.padded(True), sequence.lengths
    longest = x.shape[1]
    T = longest if total_length is None else total_length
    if longest > T:
        raise ValueError(
            f"pad_packed_sequence: total_length={T} is less than the longest of the sequences, "
            f"{longest}"
        )
    if longest < T:
        more = np.zeros((len(x), T - longest, *x.shape[2:]), x.dtype)
        x = concatenate([x, more], 1)
    is_there = np.arange(T)[None] < lengths[:, None]
    mask = tensor(is_there.reshape(*is_there.shape, *[1] * (x.ndim - 2)), device=x.device)
    x = where(mask, x, padding_value)
    return x if batch_first else exchanged(x), tensor(lengths)


def pack_sequence(sequences: Sequence[Any], enforce_sorted: bool = True) -> PackedSequence:
    """Packs sequences (L, ...) of different lengths into one PackedSequence."""
    lengths = [len(s) for s in sequences]
    return pack_padded_sequence(pad_sequence(sequences), lengths, enforce_sorted=enforce_sorted)


def unpad_sequence(padded: Any, lengths: Any, batch_first: bool = False) -> list[Tensor]:
    """Returns the sequences (L, ...) in a padded tensor as a list, without their padding."""
    rows = as_tensor(padded) if batch_first else exchanged(as_tensor(padded))
    return [rows[i, :n] for i, n in enumerate(on_host(lengths).tolist())]
