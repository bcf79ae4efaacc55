"""Replay: a recorded pass on memory, in place of module and tape; and its comparison with them."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from nnmpi.arrays import keyed
from nnmpi.arrays.backend import Array
from nnmpi.arrays.meta.log import Call
from nnmpi.arrays.meta.memory_plan import Binding, lifetimes, plan
from nnmpi.autograd import Tensor
from nnmpi.autograd.ops.norm import Moments
from nnmpi.nn.parameter import Parameter
from nnmpi.nn.pass_list import PassList, join_moments, ready, sum_over_ranks
from nnmpi.nn.passes import BatchStats


class Replay:
    """A recorded pass on memory of its own; `at_end` is called as its backward pass begins."""

    requires_grad = True
    at_end: Callable[[], None] = staticmethod(lambda: None)

    def __init__(self, passes: PassList, free: list["Replay"]) -> None:
        written = *passes.inputs, *(key.words for key in passes.keys)  # before the first call
        uses = [(a, 0) for a in written]
        uses += [(passes.seed, passes.backward), (passes.loss, len(passes.calls))]
        alive = lifetimes(passes.calls, uses)
        elsewhere = {id(stand_in) for stand_in, _ in passes.given}
        memory = plan(a for key, a in alive.items() if key not in elsewhere)
        binding = Binding(memory, passes.given)
        used = {*lifetimes(passes.calls)}
        self._inputs = [
            (k, binding.array(array)) for k, array in enumerate(passes.inputs) if id(array) in used
        ]
        self._keys = [(binding.array(key.words), key) for key in passes.keys]
        self._seed, self._loss = binding.array(passes.seed), binding.array(passes.loss)
        own: dict[Any, Any] = {
            ready: self._ready,
            join_moments: self._join,
            sum_over_ranks: self._sum,
        }
        calls = [*map(binding.call, passes.calls)]
        calls = [Call(own.get(call.function, call.function), *call[1:]) for call in calls]
        self._forward, self._backward = calls[: passes.backward], calls[passes.backward :]
        self._on_leaf: Callable[[Any], None] | None = None
        self._free = free

    def _ready(self, p: Parameter) -> None:
        p.has_grad = True
        if self._on_leaf is not None:
            self._on_leaf(p)

    def _join(self, n: int, mean: Array, m2: Array, total: int, means: Array, m2s: Array) -> None:
        joined = self._stats.moments(Moments(n, mean, m2), lambda moments: None)
        assert joined.n == total, (joined.n, total)
        means[...], m2s[...] = joined.mean, joined.m2

    def _sum(self, sums: Array, total: Array) -> None:
        total[...] = self._stats.sum(sums)

    def forward(self, arrays: Sequence[Array], step: int, stats: BatchStats) -> Array:
        """Runs the forward pass on these inputs, as in this step; returns the loss."""
        self._stats = stats
        for k, memory in self._inputs:
            np.copyto(memory, arrays[k])
        for words, (seed, purpose, names, _) in self._keys:
            words[...] = keyed.key(seed, purpose, step, *names)
        for function, args, options, _ in self._forward:
            function(*args, **options)
        self.data = self._loss.copy()  # the memory serves other micro-batches
        return self.data

    def backward(self, seed: Array, on_leaf: Callable[[Any], None] | None = None) -> None:
        """Runs the backward pass, from the gradient of the loss."""
        self.at_end()
        np.copyto(self._seed, seed)
        self._on_leaf = on_leaf
        for function, args, options, _ in self._backward:
            function(*args, **options)
        self._free.append(self)


class NotedStats:
    """BatchStats whose results are noted, so that a second run of the pass can get them again."""

    def __init__(self, inner: BatchStats) -> None:
        self._inner, self.moments_of, self.sums = inner, list[Moments](), list[Array]()

    def moments(self, local: Moments, track: Callable[[Moments], None]) -> Moments:
        """Returns and notes the moments of the whole batch."""
        self.moments_of.append(self._inner.moments(local, track))
        return self.moments_of[-1]

    def sum(self, sums: Array) -> Array:
        """Returns and notes the sum over all ranks."""
        self.sums.append(self._inner.sum(sums).copy())
        return self.sums[-1].copy()


class RecalledStats:
    """BatchStats that return what was noted, in order, also what is noted later."""

    def __init__(self, noted: NotedStats) -> None:
        self._moments, self._sums = iter(noted.moments_of), iter(noted.sums)

    def moments(self, local: Moments, track: Callable[[Moments], None]) -> Moments:
        """Returns the next moments."""
        return next(self._moments)

    def sum(self, sums: Array) -> Array:
        """Returns the next sum."""
        return next(self._sums)


class ComparedRoot:
    """The root of a pass of the tape, whose backward pass is also replayed; both must give the same
    bits.

    The replay exchanges nothing: it gets what the tape has got from other ranks.
    """

    def __init__(
        self,
        root: Tensor,
        replay: Replay,
        parameters: Sequence[Parameter],
        ended: Callable[[bool], None],
    ) -> None:
        self._root, self._replay = root, replay
        self._parameters, self._ended = parameters, ended
        self.data, self.requires_grad = root.data, root.requires_grad
        self.at_end: Callable[[], None] = lambda: None

    def backward(self, seed: Array, on_leaf: Callable[[Any], None] | None = None) -> None:
        """Runs the backward pass of the tape, then the replay; calls `ended` with True if they give
        the same bits."""
        self.at_end()
        before, reached = [_copied(p) for p in self._parameters], list[Any]()
        self._root.backward(seed, on_leaf=reached.append)
        wanted, same = {p: _copied(p) for p in self._parameters}, True
        for p, gradient in zip(self._parameters, before, strict=True):
            p.grad = gradient

        def compare(p: Parameter) -> None:
            nonlocal same
            missing.discard(p)
            if not same_bits(p.grad, wanted[p]):
                same, p.grad = False, wanted[p]
            if on_leaf is not None:
                on_leaf(p)

        missing = {*reached}
        self._replay.backward(seed, compare)
        for p in [*missing]:
            compare(p)
        self._ended(same and not any(p.has_grad and wanted[p] is None for p in self._parameters))


def _copied(p: Parameter) -> Array | None:
    return None if p.grad is None else p.grad.copy()


def same_bits(a: Array | None, b: Array | None) -> bool:
    """True if two arrays have the same bits, or both are None."""
    if a is None or b is None:
        return a is b
    return np.asarray(a).tobytes() == np.asarray(b).tobytes()
