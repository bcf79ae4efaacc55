"""Measures the memory that the passes of a pipeline stage need, in one of two ways:

CalledMemory    on arrays without data: an array lives from the first to the last call that uses it
TracedMemory    with data, for models that read values: the bytes that tracemalloc counts

    forward      backward
    |------------|--------|----------|       kept   first used in the forward pass, last used later
    F            B or I   W                  left   first used before W, last used in it
"""

import tracemalloc
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from itertools import pairwise
from operator import attrgetter
from threading import Lock
from typing import Any, NamedTuple, Self

import numpy as np

from nnmpi.arrays.meta.log import logged_calls
from nnmpi.arrays.meta.memory_plan import Lifetime, lifetimes, most_alive
from nnmpi.arrays.meta.shapes import owner
from nnmpi.planning.paper.stage import PassBytes
from nnmpi.schedules.op import Kind

PASSES = ((Kind.F,), (Kind.F, Kind.B), (Kind.F, Kind.I, Kind.W))
"""The kinds of passes, if one, two or three were run."""


class PassArrays(NamedTuple):
    """The arrays of a stage that exist before or after its passes; all other arrays of the passes
    are temporaries.

    lasting   parameters, their gradients and buffers, which exist before and after the passes
    inputs    what the stage receives
    outputs   what the stage sends to the next one; empty for the last stage, which has a loss
    """

    lasting: Sequence[Any]
    inputs: Sequence[Any]
    outputs: Sequence[Any]


class CalledMemory(ExitStack):
    """A context that logs the function calls of passes on arrays without data. From the first and
    last use of each array, `bytes` computes the memory of the passes."""

    def __enter__(self) -> Self:
        self._calls, self._edges = self.enter_context(logged_calls()), list[int]()
        self._held = list[tuple[Any, int]]()
        return self

    def mark(self, held: Iterable[Any] = ()) -> None:
        """Marks the end of a pass and the beginning of the next one. `held` are arrays that must
        count as in use until the end of the pass, even if no later call uses them."""
        self._held += [(array, len(self._calls) - 1) for array in held]
        self._edges.append(len(self._calls))

    def bytes(self, arrays: PassArrays) -> PassBytes:
        """Returns the bytes of memory that the logged passes need; the calls of `mark` have
        separated the passes. `arrays` says which arrays are inputs or outputs, or exist before and
        after the passes."""
        edges, uses = self._edges, [*self._held, *((a, 0) for a in arrays.inputs)]
        blocks = lifetimes(self._calls, uses, np.ndarray)
        enters, outs = _of(blocks, arrays.inputs), _of(blocks, arrays.outputs)
        through = outs.keys() & enters
        others = _of(blocks, arrays.lasting).keys() | enters
        alive = [block for key, block in blocks.items() if key not in others]
        out = [block for key, block in outs.items() if key not in others]
        taken, out_read = _nbytes(enters.values()), _across(out, edges[1])
        held = [0, *(taken + _across(alive, edge) for edge in edges[1:-1])]
        spans = zip(PASSES[len(held) - 1], pairwise(edges), held, strict=True)
        more = {
            kind: taken + most_alive(alive, *span, attrgetter("nbytes")) - start
            for kind, span, start in spans
        }
        kept = held[1] if len(held) > 1 else taken
        return PassBytes(
            enters=taken,
            inside=kept - taken - out_read,
            out=_nbytes(out),
            read=_across(enters.values(), edges[1]),
            out_read=out_read,
            through=_nbytes(enters[key] for key in through),
            left=held[-1] if len(held) > 2 else kept,
            more={**more, Kind.F: max(more[Kind.F], kept)},
            calls=len(self._calls),
        )


class TracedMemory(ExitStack):
    """A context in which tracemalloc counts the memory of passes on arrays with data. Inputs and
    outputs count as kept for the backward pass. Only one thread at a time can be in such a context,
    since tracemalloc counts all threads."""

    def __enter__(self) -> Self:
        self.enter_context(_ALONE)
        if not tracemalloc.is_tracing():
            self.callback(tracemalloc.stop)
            tracemalloc.start()
        self._marks = list[tuple[int, int]]()
        return self

    def mark(self, held: Iterable[Any] = ()) -> None:
        """Marks the end of a pass and the beginning of the next one: stores the memory in use and
        the peak since the last mark. `held` has no effect."""
        self._marks.append(tracemalloc.get_traced_memory())
        tracemalloc.reset_peak()

    def bytes(self, arrays: PassArrays) -> PassBytes:
        """Returns the bytes of memory that the traced passes need; the calls of `mark` have
        separated the passes. `arrays` says which arrays are inputs or outputs, or exist before and
        after the passes."""
        taken, out = (_nbytes_of(some) for some in (arrays.inputs, arrays.outputs))
        (start, _), *marks = self._marks
        kept, left = marks[0][0] - start, marks[-2:][0][0] - start
        spans = zip(PASSES[len(marks) - 1], pairwise(self._marks), strict=True)
        more = {kind: end[1] - begin[0] for kind, (begin, end) in spans}
        inside = max(kept - taken - out, 0)
        return PassBytes(taken, inside, out, taken, out, left=left, more=more)


_ALONE = Lock()  # tracemalloc counts all threads: ranks that are threads must take turns


def _of(blocks: Mapping[int, Lifetime], arrays: Iterable[Any]) -> dict[int, Lifetime]:
    """Returns those of the memory blocks `blocks` that contain the given arrays, by the id of the
    array that owns the block."""
    owners = {id(owner(a)): None for a in arrays}
    return {key: blocks[key] for key in owners if key in blocks}


def _nbytes(blocks: Iterable[Lifetime]) -> int:
    return sum(block.nbytes for block in blocks)


def _nbytes_of(arrays: Iterable[Any]) -> int:
    return sum({id(owner(a)): int(owner(a).nbytes) for a in arrays}.values())


def _across(blocks: Iterable[Lifetime], edge: int) -> int:
    """Returns the bytes of the memory blocks that are in use across a point of time: first used
    before function call number `edge`, and last used in this call or later."""
    return _nbytes(block for block in blocks if block.first < edge <= block.last)
