"""Passes that run by the tape, and as a replay beside it, to see that both give the same bits.

The replay exchanges nothing with other ranks: it gets what the tape has got from them, and what it
would have sent is compared with what the tape has sent.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from nnmpi.arrays.backend import Array
from nnmpi.autograd import Tensor
from nnmpi.autograd.ops.norm import Moments
from nnmpi.nn.parameter import Parameter
from nnmpi.nn.passes import LOCAL, BatchStats
from nnmpi.parallel.step.buffers import Received
from nnmpi.parallel.step.exchanges import Notes, plain_exchanges, same_bits
from nnmpi.parallel.step.ports import JoinedOutputs
from nnmpi.parallel.step.replay import OnLeaf, RunnablePass


class Compared:
    """A micro-batch that runs by the tape, and as a replay beside it; `ended` is called with True
    if both give the same bits."""

    def __init__(
        self,
        root: Tensor,
        replay: RunnablePass,
        received: Sequence[Received],
        parameters: Sequence[Parameter],
        notes: Notes,
        ended: Callable[[bool], None],
    ) -> None:
        self._root, self._replay, self._received = root, replay, received
        self._parameters, self._notes, self._ended = parameters, notes, ended
        self._rest: Any = None
        self._same = True

    def first(self, seeds: Sequence[Any], on_leaf: OnLeaf | None, until: Any) -> None:
        """Runs the first half, or all, of the backward pass of the tape, then of the replay."""
        root, seed = self._root, seeds[0]
        if isinstance(root, JoinedOutputs):
            seed = root.seed(seeds)
        if until is None:
            self._both(partial(root.backward, seed), partial(self._whole, seeds), on_leaf)
        else:
            with self._notes.noting():
                self._rest = root.backward(seed, until=until)
            with self._notes.recalling():
                self._replay.first_half(seeds)
        for x, gradient in zip(self._received, self._replay.gradients, strict=True):
            self._same &= same_bits(x.gradient().array, gradient)

    def second(self, on_leaf: OnLeaf | None) -> None:
        """Runs what is left."""
        if self._rest is not None:
            self._both(self._rest.finish, self._replay.second_half, on_leaf)
        self._ended(self._same and self._notes.is_same)

    def _whole(self, seeds: Sequence[Any], on_leaf: OnLeaf) -> None:
        self._replay.first_half(seeds, on_leaf)
        self._replay.second_half(on_leaf)

    def _both(
        self, by_tape: Callable[..., object], replay: Callable[..., object], on_leaf: OnLeaf | None
    ) -> None:
        before, reached = [_copied(p) for p in self._parameters], list[Any]()
        with self._notes.noting():
            by_tape(on_leaf=reached.append)
        wanted = {p: _copied(p) for p in self._parameters}
        for p, gradient in zip(self._parameters, before, strict=True):
            p.grad = gradient

        def compare(p: Parameter) -> None:
            missing.discard(p)
            if not same_bits(p.grad, wanted[p]):
                self._same, p.grad = False, wanted[p]
            if on_leaf is not None:
                on_leaf(p)

        missing = {leaf for leaf in reached if isinstance(leaf, Parameter)}
        with self._notes.recalling():
            replay(on_leaf=compare)
        for p in [*missing]:
            compare(p)
        self._same &= not any(p.has_grad and wanted[p] is None for p in self._parameters)


class NotedStats:
    """BatchStats whose arguments and results are noted, so that a second run of the pass can get
    the results again."""

    def __init__(self, inner: BatchStats, notes: Notes) -> None:
        self._inner, self._notes, self.moments_of = inner, notes, list[Moments]()

    def moments(self, local: Moments, track: Callable[[Moments], None]) -> Moments:
        """Returns and notes the moments of the whole batch."""
        if self._inner is not LOCAL:  # else the replay asks nobody
            self._notes.add_sent(np.concatenate((local.mean, local.m2)))
        with plain_exchanges():
            self.moments_of.append(self._inner.moments(local, track))
        return self.moments_of[-1]

    def sum(self, sums: Array) -> Array:
        """Returns and notes the sum over all ranks."""
        sent = sums.copy()
        with plain_exchanges():
            total = self._inner.sum(sums)
        if self._inner is not LOCAL:
            self._notes.add_sent(sent)
            self._notes.add(total)
        return total


class RecalledStats:
    """BatchStats that return what was noted, in order, also what is noted later."""

    def __init__(self, noted: NotedStats, notes: Notes) -> None:
        self._moments, self._notes = iter(noted.moments_of), notes

    def moments(self, local: Moments, track: Callable[[Moments], None]) -> Moments:
        """Returns the next moments."""
        self._notes.check_sent(np.concatenate((local.mean, local.m2)))
        return next(self._moments)

    def sum(self, sums: Array) -> Array:
        """Returns the next sum."""
        self._notes.check_sent(sums)
        total = sums.copy()
        self._notes.write_next(total)
        return total


def _copied(p: Parameter) -> Array | None:
    return None if p.grad is None else p.grad.copy()
