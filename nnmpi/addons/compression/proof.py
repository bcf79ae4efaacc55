"""Proves that a codec (compression method of --compress) works, by running it for several simulated
ranks in one process.

In each of a few steps on random gradients, added to the residuals (values not sent) of the step
before, it checks:

    all ranks start the same transfers              so none waits for ever
    the sum has the same bits on all ranks          so replicas stay equal
    sum + residuals of all ranks = gradients        so nothing is lost, only sent later
    a tensor has the same sum alone as in a bucket  so ranks along tp, with other buckets, agree
"""

from collections.abc import Iterator, Sequence
from functools import lru_cache
from inspect import isgenerator
from itertools import accumulate, pairwise
from math import prod
from typing import Any, NamedTuple

import numpy as np

from nnmpi.addons.compression.codecs import CODECS, Codec, CodecInput
from nnmpi.addons.compression.compressed import Shape
from nnmpi.addons.compression.options import compression
from nnmpi.arrays.backend import Array
from nnmpi.collectives.step import bounds
from nnmpi.options import user_code
from nnmpi.options.config import Config
from nnmpi.options.quoting import quoted

SHAPES = [(30, 70), (1, 7), (4, 90), (3, 2)]
ELEMENTS = [*map(prod, SHAPES)]
RANKS, STEPS = (2, 3, 4), 3
MOST_PHASES = 1000
NEAR = 1e-4
"""The largest error that is accepted in sums of gradients of about 1."""


class CodecError(ValueError):
    """Raised for a codec that would let replicas differ, lose gradients, or hang."""


def find(spec: str) -> tuple[Codec, float]:
    """Returns the codec that --compress names, of CODECS or, proved first, the user's at
    `package.module:NAME`, and the number after its name."""
    name, number = compression(spec)
    if name in CODECS:
        return CODECS[name], number
    codec = user_code.imported(name, "compress")
    if not isinstance(codec, Codec):
        raise ValueError(
            f"compress {quoted(name)} must be a Codec of nnmpi.addons.compression.codecs; it is "
            f"of type {type(codec).__name__}"
        )
    try:
        prove(codec)
    except CodecError as error:
        raise CodecError(f"compress {quoted(name)}: {error}") from None
    except Exception as error:
        raise CodecError(f"compress {quoted(name)}: {user_code.reason_of(error)}") from error
    return codec, number


def check(config: Config, ranks: int) -> None:
    """Raises ValueError unless --compress names a codec; a user's is proved."""
    find(config.compress or "")


@lru_cache
def prove(codec: Codec, number: float = 0.0) -> None:
    """Raises CodecError if the codec, called with this number, breaks a rule of this module."""
    ends = [*pairwise(accumulate(ELEMENTS, initial=0))]
    for p in RANKS:
        together = [total.copy() for total in _sums(codec, number, p, SHAPES, slice(None))]
        for shape, (lo, hi) in zip(SHAPES, ends, strict=True):
            alone = next(_sums(codec, number, p, [shape], slice(lo, hi)))
            if (together[0][lo:hi] != alone).any():
                raise CodecError(
                    f"the sum of a tensor of shape {shape} over {p} ranks depends on the others "
                    "of its bucket: compress each of bucket.parts by itself"
                )


def _sums(
    codec: Codec, number: float, p: int, shapes: Sequence[Shape], drawn: slice
) -> Iterator[Array]:
    """Runs a codec for some steps on p simulated ranks, with random gradients of tensors with these
    shapes; yields the sums. Raises CodecError if sum and residuals do not add up to the gradients.
    `number` is that after the codec's name, `drawn` the slice of all random numbers, so that a
    tensor alone has the same gradient as in a bucket."""
    rng = np.random.default_rng(p)
    factors = [rng.standard_normal(sum(ELEMENTS), np.float32)[drawn]] * p
    factors = [factor.copy() for factor in factors]
    rows = [np.zeros_like(factor) for factor in factors]
    for step in range(STEPS):
        for row in rows:
            gradient = rng.standard_normal(sum(ELEMENTS), np.float32)
            gradient[-ELEMENTS[-1] :] *= step > 0  # at first the last tensor has none
            row += gradient[drawn]
        whole = np.sum(rows, 0)
        total = _sum(codec, number, rows, factors, shapes)
        lost = np.abs(total + np.sum(rows, 0) - whole).max()
        if not lost <= NEAR:
            raise CodecError(
                f"on {p} ranks the sum and what is kept differ from gradients of about 1 by "
                f"{lost:.2g}: leave in bucket.row what was not sent"
            )
        yield total


def _sum(
    codec: Codec, number: float, rows: list[Array], factors: list[Array], shapes: Sequence[Shape]
) -> Array:
    """Runs a codec on simulated ranks for one step, and returns the sum over ranks. Each of `rows`,
    the gradient + residual of a rank, is overwritten with the next residual; `factors` are those of
    the last step."""
    p, sizes = len(rows), [*map(prod, shapes)]
    wires: list[Any] = [ProofWire(rank, p) for rank in range(p)]
    ranks = [
        codec.sum(CodecInput(row, shapes, sizes, row.dtype, wire, "ring", factor), number)
        for row, wire, factor in zip(rows, wires, factors, strict=True)
    ]
    if not all(map(isgenerator, ranks)):
        raise CodecError("its function is no generator: it has to yield what it starts")
    totals = dict[int, Array]()
    for _ in range(MOST_PHASES):
        for rank, phases in enumerate(ranks):
            try:
                next(phases)
            except StopIteration as end:
                totals[rank] = end.value
        if 0 < len(totals) < p:
            raise CodecError(f"rank {min(totals)} of {p} ends while others start a transfer")
        _complete(wires)
        if totals:
            break
    else:
        raise CodecError(f"it has not ended after {MOST_PHASES} phases")
    for name, arrays in ("sum", [totals[rank] for rank in range(p)]), ("factor", factors):
        for rank, array in enumerate(arrays):
            if getattr(array, "shape", None) != rows[0].shape:
                raise CodecError(f"its {name} is not an array of the {rows[0].size} elements")
            if array.tobytes() != arrays[0].tobytes():
                raise CodecError(
                    f"the {name} on rank {rank} of {p} is not that on rank 0, so replicas would "
                    "differ: compute it from what all ranks have, in one order"
                )
    return totals[0]


class _Call(NamedTuple):
    """A transfer that a simulated rank has started, to check that those of all ranks fit together.

    kind    the name of the method that has started it, such as "isend" or "start_all_gather"
    about   the algorithm of an all-reduce, the lengths of parts of an all-gather, or (the other
            rank, tag) of a message
    """

    kind: str
    array: Array
    about: Any


class ProofWire:
    """Stands for a simulated rank's communication: records its transfers."""

    def __init__(self, rank: int, size: int) -> None:
        self.rank, self.size = rank, size
        self.calls = list[_Call]()

    def start(self, array: Array, algorithm: str = "auto") -> object:
        return self._add(_Call("start", array.reshape(-1), algorithm))

    def start_all_gather(
        self, array: Array, algorithm: str = "ring", parts: Sequence[int] | None = None
    ) -> object:
        lengths = tuple(parts or np.diff(bounds(array.size, self.size)).tolist())
        return self._add(_Call("start_all_gather", array.reshape(-1), lengths))

    def isend(self, array: Array, to: int, tag: int = 0) -> object:
        return self._add(_Call("isend", array, (to, tag)))

    def irecv(self, array: Array, source: int, tag: int = 0) -> object:
        return self._add(_Call("irecv", array, (source, tag)))

    def taken(self, *kinds: str) -> list[_Call]:
        """Removes the recorded transfers of these kinds, such as "isend", and returns them."""
        calls = [call for call in self.calls if call.kind in kinds]
        self.calls = [call for call in self.calls if call.kind not in kinds]
        return calls

    def _add(self, call: _Call) -> object:
        self.calls.append(call)
        return call


def _complete(wires: Sequence[ProofWire]) -> None:
    """Carries out simulated transfers; raises CodecError if they do not match."""
    of_ranks = [wire.taken("start", "start_all_gather") for wire in wires]
    forms = [[(x.kind, x.array.size, x.array.dtype, x.about) for x in calls] for calls in of_ranks]
    for rank, form in enumerate(forms):
        if form != forms[0]:
            raise CodecError(
                f"rank {rank} of {len(wires)} starts {_text(form)}, and rank 0 {_text(forms[0])}: "
                "all ranks have to start the same"
            )
    for calls in zip(*of_ranks, strict=True):
        if calls[0].kind == "start":
            result = sum(call.array for call in calls[1:]) + calls[0].array
        else:
            ends = pairwise(accumulate(calls[0].about, initial=0))
            parts = [call.array[lo:hi] for call, (lo, hi) in zip(calls, ends, strict=True)]
            result = np.concatenate(parts)
        for call in calls:
            call.array[...] = result
    sends = {wire.rank: wire.taken("isend") for wire in wires}
    for wire in wires:
        for call in wire.taken("irecv"):
            source, tag = call.about
            sent = [x for x in sends[source] if x.about == (wire.rank, tag)]
            if not sent or sent[0].array.nbytes != call.array.nbytes:
                raise CodecError(f"rank {wire.rank} has no such message from rank {source}")
            sends[source] = [x for x in sends[source] if x is not sent[0]]
            call.array[...] = sent[0].array.reshape(call.array.shape)
    for rank, calls in sends.items():
        for call in calls:
            raise CodecError(f"rank {call.about[0]} does not receive a message from rank {rank}")


def _text(form: Sequence[tuple[str, int, Any, object]]) -> str:
    return ", ".join(f"{kind} of {n:,} {dtype}" for kind, n, dtype, _ in form) or "nothing"
