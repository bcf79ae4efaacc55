"""Passes that run by the tape, and as a replay beside it, to see that both give the same bits.

The replay exchanges nothing with other ranks: it gets what the tape has got from them, and what it
would have sent is compared with what the tape has sent.
"""

from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from nnmpi.arrays.backend import Array
from nnmpi.autograd.ops.norm import Moments
from nnmpi.nn.parameter import Parameter
from nnmpi.nn.passes import LOCAL, BatchStats
from nnmpi.parallel.step.buffers import Received
from nnmpi.parallel.step.exchanges import Notes, plain_exchanges, same_bits
from nnmpi.parallel.step.ports import Stage, TapePass
from nnmpi.parallel.step.replay import RunnablePass, seeds_of


class Compared:
    """A micro-batch that runs by the tape, and as a replay beside it; `ended` is called with True
    if both give the same bits."""

    def __init__(
        self,
        by_tape: TapePass,
        replay: RunnablePass,
        received: Sequence[Received],
        stage: Stage,
        notes: Notes,
        ended: Callable[[bool], None],
    ) -> None:
        self.root, self._by_tape, self._replay = by_tape.root, by_tape, replay
        self._received, self._notes, self._ended = received, notes, ended
        self._parameters, self._of_units = [*stage.module.parameters()], stage.of_units[::-1]
        self._same = True

    def backward(self, seed: Array) -> Generator[None, None, None]:
        """Runs the backward pass of the tape, then that of the replay; stops between units."""
        seeds = seeds_of(self.root, seed)
        yield from self._both(self._by_tape.backward(seed), seeds)
        self._compare_inputs()
        self._ended(self._same and self._notes.is_same)

    def first_half(self, seed: Array) -> None:
        """Computes the gradients of the inputs that come from another stage, in both ways."""
        seeds = seeds_of(self.root, seed)
        with self._notes.noting():
            self._by_tape.first_half(seed)
        with self._notes.recalling():
            self._replay.first_half(seeds)
        self._compare_inputs()

    def second_half(self) -> Generator[None, None, None]:
        """Computes what is left, in both ways; stops between units."""
        yield from self._both(self._by_tape.second_half(), None)
        self._ended(self._same and self._notes.is_same)

    def _compare_inputs(self) -> None:
        for x, gradient in zip(self._received, self._replay.gradients, strict=True):
            self._same &= same_bits(x.gradient().array, gradient)

    def _both(
        self, by_tape: Iterator[None], seeds: Sequence[Any] | None
    ) -> Generator[None, None, None]:
        """Runs all of a backward pass, or of its second half, by the tape, then unit by unit as a
        replay, from these gradients of outputs."""
        before = [(p, _copied(p)) for p in self._parameters]
        with self._notes.noting():
            for _ in by_tape:
                pass
        wanted = {p: _copied(p) for p in self._parameters}
        for p, gradient in before:
            p.grad = gradient
        left = {p for p in self._parameters if wanted[p] is not None}
        replay = self._unit_by_unit(seeds)
        for own in self._of_units[:-1]:
            with self._notes.recalling():
                next(replay)
            self._compare(left & own, wanted)
            left -= own  # it may be summed over ranks now
            yield
        with self._notes.recalling():
            next(replay, None)
        self._compare(left, wanted)
        self._same &= not any(p.has_grad and wanted[p] is None for p in self._parameters)

    def _unit_by_unit(self, seeds: Sequence[Any] | None) -> Generator[None, None, None]:
        if seeds is not None:
            self._replay.first_half(seeds)
        yield from self._replay.second_half()

    def _compare(self, parameters: Iterable[Parameter], wanted: Mapping[Parameter, Any]) -> None:
        for p in parameters:
            if not same_bits(p.grad, wanted[p]):
                self._same, p.grad = False, wanted[p]


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
