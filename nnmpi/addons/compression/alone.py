"""Codecs of --compress on one rank: what they would send, and calls without messages, to measure
their time."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from nnmpi.addons.compression import proof
from nnmpi.addons.compression.codecs import CodecInput, matrix_of
from nnmpi.addons.compression.compressed import sent as sent
from nnmpi.addons.compression.exchange import Exchange
from nnmpi.arrays import meta
from nnmpi.arrays.meta.log import logged_calls, touched_bytes
from nnmpi.arrays.native.table import Kernel
from nnmpi.nn.parameter import Parameter
from nnmpi.parallel.wire import Transfers


class AloneWire:
    """A stand-in for the communication of a single rank: each transfer is complete at once."""

    size, rank = 1, 0
    start = start_all_gather = isend = irecv = staticmethod(lambda *_, **__: Transfers())


def codec_call(spec: str, parameters: Sequence[Parameter]) -> tuple[Callable[[], None], int]:
    """Returns (a function, the bytes that a call of it reads and writes): it encodes and decodes
    random gradients of these parameters as --compress `spec` does in a step."""
    codec, number = proof.find(spec)
    matrices = [matrix_of(p) for p in parameters]
    rooms = [p.size for p in parameters]

    def run(row: Any, factors: Any) -> None:
        wire: Any = AloneWire()
        bucket = CodecInput(row.copy(), matrices, rooms, row.dtype, wire, "ring", factors)
        Exchange(codec.sum(bucket, number)).wait()

    row = np.random.default_rng(0).normal(size=sum(rooms)).astype(np.float32)
    with logged_calls() as calls:
        run(meta.like(row), meta.like(row))
    touched = touched_bytes(call for call in calls if not isinstance(call.function, Kernel))
    return partial(run, row, row[::-1].copy()), touched
