"""Recordings of layers that read values, for example to choose experts: on arrays with numbers.

Other ranks are assumed to have the numbers of this one: a sum is `size` times them, a gather has
them in every place, a received message is zeros.
"""

import tracemalloc
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager, ExitStack
from itertools import pairwise
from threading import Lock
from typing import Any, Self

import numpy as np

from nnmpi.arrays import meta
from nnmpi.arrays.backend import Array
from nnmpi.arrays.dtypes import is_float
from nnmpi.arrays.meta import is_meta
from nnmpi.arrays.meta.shapes import axis_order, owner
from nnmpi.nn.parameter import inverse
from nnmpi.parallel.facts.passes import PARTS, PassBytes
from nnmpi.parallel.step.recorded_pass import RecordedPass
from nnmpi.parallel.step.recorded_wires import LoggedWire, wires
from nnmpi.schedules.op import Kind


def integers(array: Array) -> Any:
    """Returns a stand-in: a copy of integers, such as tokens; others without data."""
    return meta.like(array) if is_meta(array) or is_float(array.dtype) else array.copy()


def small(array: Array) -> Any:
    """Returns a stand-in: zeros for integers, small random floats for others."""
    order = axis_order(array)
    shape = [array.shape[k] for k in order]
    memory: Array = np.zeros(shape, array.dtype)
    if is_float(array.dtype):
        memory[...] = np.random.default_rng(0).standard_normal(shape) / 100
    return memory.transpose(inverse(order))


class _AssumedWire(LoggedWire):
    """A wire that records exchanges as calls, and fills arrays of numbers as if all ranks had those
    of this one. A call gets an array without data in their place, so that it keeps no memory."""

    takes_numbers = True

    def all_reduce(self, row: Any, algorithm: str) -> None:
        super().all_reduce(_without_data(row), algorithm)
        if not is_meta(row):
            row *= self._comm.size

    def all_gather(
        self, buffer: Any, algorithm: str = "ring", parts: Sequence[int] | None = None
    ) -> None:
        super().all_gather(_without_data(buffer), algorithm, parts)
        if not is_meta(buffer) and len({*(parts or ())}) < 2:  # equal parts: one fits every place
            rows = buffer.reshape(self._comm.size, -1)
            rows[...] = rows[self._comm.rank].copy()

    def start_reduce_scatter(self, row: Any, *arguments: Any) -> Any:
        return super().start_reduce_scatter(_without_data(row), *arguments)

    def isend(self, array: Any, *arguments: Any) -> Any:
        return super().isend(_without_data(array), *arguments)

    def irecv(self, array: Any, *arguments: Any) -> Any:
        if not is_meta(array):
            array[...] = 0
        return super().irecv(_without_data(array), *arguments)


def _without_data(array: Any) -> Any:
    return array if is_meta(array) else meta.like(array)


def assumed_exchanges() -> AbstractContextManager[None]:
    """Returns a context in which exchanges of a pass become calls in its list; nothing is sent."""
    return wires(_AssumedWire)


class TracedMemory(ExitStack):
    """A context in which tracemalloc counts the memory of passes on arrays with data, one thread at
    a time. Inputs and outputs count as kept for the backward pass."""

    def __enter__(self) -> Self:
        self.enter_context(_ALONE)
        if not tracemalloc.is_tracing():
            self.callback(tracemalloc.stop)
            tracemalloc.start()
        self._marks = list[tuple[int, int]]()
        return self

    def mark(self) -> None:
        """Marks the end of a pass: stores the memory in use, and the peak since the last mark."""
        self._marks.append(tracemalloc.get_traced_memory())
        tracemalloc.reset_peak()

    def bytes(self, p: RecordedPass, inputs: Iterable[Any], outputs: Iterable[Any]) -> PassBytes:
        """Returns the bytes that the passes of `p` need, which calls of `mark` have separated."""
        taken, out = _nbytes_of(inputs), _nbytes_of(outputs)
        (start, _), *marks = self._marks
        kept, left = marks[0][0] - start, marks[-2:][0][0] - start
        spans = zip(PARTS[len(marks) - 1], pairwise(self._marks), strict=True)
        more = {kind: end[1] - begin[0] for kind, (begin, end) in spans}
        if Kind.W in more:  # what the first half hands on is not there any more, but in the list
            gone = _nbytes_of(a for a in (*p.seeds, *p.gradients) if a is not None)
            more[Kind.W] = max(more[Kind.W] - gone, 0)
        inside = max(kept - taken - out, 0)
        return PassBytes(taken, inside, out, taken, out, left=left, more=more)


_ALONE = Lock()  # tracemalloc counts all threads: ranks that are threads must take turns


def _nbytes_of(arrays: Iterable[Any]) -> int:
    return sum({id(owner(a)): int(owner(a).nbytes) for a in arrays}.values())
