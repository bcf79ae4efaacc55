"""Runs a pass of a stage twice, by autograd and as a replay, and compares the bits of both; replays
run alone only after they have passed this check.

The replay exchanges nothing with other ranks: it gets copies of the arrays that autograd's pass
received, and what it would send is compared with what was sent.
"""

from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from typing import NamedTuple, Self

import numpy as np

from nnmpi.arrays.backend import Array
from nnmpi.arrays.meta.log import UnlikeError
from nnmpi.autograd.ops.norm import Moments
from nnmpi.data.inputs import parts
from nnmpi.nn.parameter import Parameter
from nnmpi.nn.passes import LOCAL, BatchStats
from nnmpi.parallel.step.buffers import Received
from nnmpi.parallel.step.recorded_wires import Notes, same_bits, wires
from nnmpi.parallel.step.replay import Replay
from nnmpi.parallel.step.stage import ENDED, PassState, Stage, TapePass


class ForwardBeside:
    """Replays the forward pass of a stage while autograd runs it too: each unit after autograd has
    run it, with separate copies of the module's buffers.

    forward   the generator that runs the replay, and stops between units
    notes     copies of the arrays that autograd's pass has exchanged with other ranks
    is_alike  False if the replay does not fit the labels of this batch, for example because some
              are ignored; then only autograd's pass runs
    """

    def __init__(
        self,
        replay: Replay,
        forward: Iterator[None],
        buffers: Sequence[Array],
        notes: Notes,
    ) -> None:
        self.replay, self._forward, self._notes, self.is_alike = replay, forward, notes, True
        self._buffers, self._own = buffers, [array.copy() for array in buffers]

    def follow(self) -> bool:
        """Replays the unit that autograd has just run; returns False if no unit is left."""
        of_tape = [array.copy() for array in self._buffers]
        _write(self._buffers, self._own)
        try:
            with self._notes.recalling():
                is_left = next(self._forward, ENDED) is not ENDED
        except UnlikeError:
            self.replay.free()
            self.is_alike = is_left = False
        self._own = [array.copy() for array in self._buffers]
        _write(self._buffers, of_tape)
        return is_left

    def is_same(self, outputs: Sequence[Array]) -> bool:
        """True if outputs and buffers of autograd and replay have the same bits."""
        pairs = zip((*outputs, *self._buffers), (*self.replay.outputs, *self._own), strict=True)
        return all(same_bits(*pair) for pair in pairs)


def _write(arrays: Sequence[Array], values: Sequence[Array]) -> None:
    for array, value in zip(arrays, values, strict=True):
        array[...] = value


class Compared:
    """The backward pass of a micro-batch, run by autograd and as a replay to compare the bits. At
    the end `ended` is called, with True if both have given the same."""

    def __init__(
        self,
        by_tape: TapePass,
        replay: Replay,
        state: PassState,
        stage: Stage,
        notes: Notes,
        ended: Callable[[bool], None],
    ) -> None:
        self.release = by_tape.release
        self._by_tape, self._replay = by_tape, replay
        self._received = [t for _, t in parts(state.input) if isinstance(t, Received)]
        self._notes, self._ended = notes, ended
        self._stage, self._same = stage, True

    @property
    def outputs(self) -> Sequence[Array]:
        """The outputs of autograd's pass, until they are released."""
        return self._by_tape.outputs

    def backward(self, seeds: Sequence[Array | None]) -> Generator[None, None, None]:
        """Runs each unit backward by autograd, then as a replay; yields between units."""
        yield from self._both(self._by_tape.backward(seeds), self._replay.backward(seeds))
        self._compare_inputs()
        self._ended(self._same and self._notes.is_same)

    def first_half(self, seeds: Sequence[Array | None]) -> Generator[None, None, None]:
        """Computes the gradients of received inputs by autograd and replay, and compares."""
        replayed = self._replay.first_half(seeds)

        def follow() -> bool:
            with self._notes.recalling():
                return next(replayed, ENDED) is not ENDED

        with self._stage.beside(follow), self._notes.noting():
            yield from self._by_tape.first_half(seeds)
        while follow():
            pass
        self._compare_inputs()

    def second_half(self) -> Generator[None, None, None]:
        yield from self._both(self._by_tape.second_half(), self._replay.second_half())
        self._ended(self._same and self._notes.is_same)

    def _compare_inputs(self) -> None:
        for x, gradient in zip(self._received, self._replay.gradients, strict=True):
            self._same &= same_bits(x.gradient().array, gradient)

    def _both(self, by_tape: Iterator[None], replay: Iterator[None]) -> Generator[None, None, None]:
        """Computes the gradients of each unit twice, by `by_tape` and by `replay`, whose `next`
        runs one unit of a backward pass or of its second half. Yields between units.

        Both add to the same gradient memory. So before each unit, this memory is set to the
        gradients that autograd, or the replay, has computed so far; in the end these are
        compared."""
        left = {*self._stage.parameters}
        of_tape = of_replay = [_Gradient.of(p, p.has_grad) for p in left]
        for k, final in enumerate(self._stage.of_units[::-1]):
            if k:
                yield
            _put_back(of_tape)
            with self._notes.noting():
                next(by_tape, None)
            of_tape = [_Gradient.of(p, p.has_grad) for p in left]
            _put_back(of_replay)
            with self._notes.recalling():
                next(replay, None)
            # a graph on a GPU has computed all gradients with its first unit
            of_replay = [_Gradient.of(g.p, g.array is not None or g.p.has_grad) for g in of_tape]
            is_last = k + 1 == len(self._stage.of_units)
            for mine, wanted in zip(of_replay, of_tape, strict=True):
                if (is_last or mine.p in final) and not mine.is_same(wanted):
                    self._same = False
                    wanted.put_back()
            left -= final  # their sum over ranks may start now
            of_tape, of_replay = ([g for g in row if g.p in left] for row in (of_tape, of_replay))


class _Gradient(NamedTuple):
    """A copy of a gradient at some point of a backward pass, to restore it or to compare it later;
    the array is None if no pass has written to the memory yet."""

    p: Parameter
    has_grad: bool
    array: Array | None

    @classmethod
    def of(cls, p: Parameter, is_there: bool) -> Self:
        return cls(p, p.has_grad, p.grad_memory.copy() if is_there else None)

    def put_back(self) -> None:
        self.p.has_grad = self.has_grad
        if self.array is not None:
            self.p.grad_memory[...] = self.array

    def is_same(self, other: "_Gradient") -> bool:
        if self.array is None or other.array is None:
            return self.has_grad is other.has_grad
        return self.has_grad is other.has_grad and same_bits(self.array, other.array)


def _put_back(gradients: Iterable[_Gradient]) -> None:
    for gradient in gradients:
        gradient.put_back()


class NotedStats:
    """BatchStats of autograd's pass, which keep arguments and results for a replay."""

    def __init__(self, inner: BatchStats, notes: Notes) -> None:
        self._inner, self._notes, self.moments_of = inner, notes, list[Moments]()

    def moments(self, local: Moments, track: Callable[[Moments], None]) -> Moments:
        """Returns the moments of the whole batch, given `local`, and keeps both for the replay."""
        if self._inner is not LOCAL:  # else the replay asks nobody
            self._notes.add_sent(np.concatenate((local.mean, local.m2)))
        with wires(None):
            self.moments_of.append(self._inner.moments(local, track))
        return self.moments_of[-1]

    def sum(self, sums: Array) -> Array:
        """Returns the sum over ranks, and keeps it for the replay, which sends no message."""
        sent = sums.copy()
        with wires(None):
            total = self._inner.sum(sums)
        if self._inner is not LOCAL:
            self._notes.add_sent(sent)
            self._notes.add(total)
        return total


class RecalledStats:
    """BatchStats of a replay: return in order what a NotedStats has kept."""

    def __init__(self, noted: NotedStats, notes: Notes) -> None:
        self._moments, self._notes = iter(noted.moments_of), notes

    def moments(self, local: Moments, track: Callable[[Moments], None]) -> Moments:
        """Returns the next kept moments; with other bits in `local` the comparison fails."""
        self._notes.check_sent(np.concatenate((local.mean, local.m2)))
        return next(self._moments)

    def sum(self, sums: Array) -> Array:
        """Returns the next kept sum; the comparison fails if `sums` has other bits."""
        self._notes.check_sent(sums)
        total = sums.copy()
        self._notes.write_next(total)
        return total
