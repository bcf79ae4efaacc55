"""Buckets: gradients leave while the backward pass runs.

The last layers' gradients are final first, so buckets are cut from the end of the flat buffer:

    flat_grad   [ head | conv1 | conv2 | fc1 | fc2 ]
                  ◄────bucket 2────► ◄─ 1 ─► ◄ 0 ►     summed in the order 0, 1, 2 on every rank

The head rides on the last bucket: the loss, whether somebody wants to stop, and which parameters
were used.
"""

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from nnmpi import backend
from nnmpi.nn.parameter import Parameter
from nnmpi.parallel.stores.node import Bounds, Single, Sum

LOSS, STOP, USED = 0, 1, 2  # where they stand in the head


def head_length(parameters: Sequence[Parameter]) -> int:
    """The loss, a wish to stop, and one number for each parameter."""
    return USED + len(parameters)


def bounds(spans: Bounds, nbytes: float, itemsize: int) -> list[tuple[int, int]]:
    """Buckets of at least so many bytes each, the last ones first; no parameter is cut in two."""
    found = []
    end = spans[-1][1]
    for start, _ in reversed(spans):
        if (end - start) * itemsize >= nbytes:
            found.append((start, end))
            end = start
    if found and end == spans[0][0]:
        start, end = found.pop()
        return [*found, (0, end)]
    return [*found, (0, end)]


class Buckets:
    """The sums of one step: launched when they are complete, in one order on every rank."""

    def __init__(self, store: Single, edges: Bounds, overlap: bool) -> None:
        self._store, self._edges, self._overlap = store, edges, overlap
        self._bucket = {
            p: next(b for b, (lo, _) in enumerate(edges) if start >= lo)
            for p, (start, _) in zip(store.parameters, store.spans, strict=True)
        }
        self._members = [
            [p for p, own in self._bucket.items() if own == b] for b in range(len(edges))
        ]

    def begin(self) -> None:
        """A new step: nothing is complete."""
        self._left = [len(members) for members in self._members]
        self._next = 0
        self._works: list[Sum] = []

    def ready(self, p: Parameter) -> None:
        """Its gradient is final."""
        self._left[self._bucket[p]] -= 1
        if self._overlap:
            while self._next < len(self._left) and not self._left[self._next]:
                self._launch()

    def push(self) -> None:
        """Moves on what is under way."""
        if self._works:
            self._works[0].poll()

    def finish(self) -> None:
        """Sums what is left, of parameters that were not used too, and waits for all."""
        while self._next < len(self._left):
            self._launch()
            if not self._overlap:
                self._works[-1].wait()
        for work in self._works:
            work.wait()

    def _launch(self) -> None:
        store, b = self._store, self._next
        fill_unused(self._members[b])
        if b == len(self._edges) - 1:
            store.flat_grad[USED : store.head] = used(store)
        self._works.append(store.start(*self._edges[b]))
        self._next += 1


def fill_unused(parameters: Iterable[Parameter]) -> None:
    """Zeros where no gradient has arrived."""
    for p in parameters:
        if not p.has_grad:
            p.slot[...] = 0


def used(store: Single) -> Any:
    """For each parameter 1 if a gradient has arrived, else 0."""
    flags = np.array([p.has_grad for p in store.parameters], store.flat_grad.dtype)
    return backend.of(store.flat_grad).asarray(flags)
