"""Specs: how ranks hold an activation that is not divided along channels (whole, or cut along
positions or samples); and layers of which each rank computes some samples.

                    a rank has      sum(terms)          whole(part)
    Replicated      all of it       all-reduce          the part itself
    AxisSharded     some positions, reduce-scatter      all-gather
                    some samples

The two methods are transposes of each other as maps between what all ranks hold. Both methods of
AxisSharded send half of what an all-reduce sends, and between two matrix products each rank stores
only its part of the activations: some positions in sequence parallelism (Megatron-LM: Korthikanti
and others, 2022), or some samples between convolutions that ranks divide by samples and linear
layers that they divide by channels (Krizhevsky, 2014).

In a layer by samples each rank has the whole weights, and computes some samples of a micro-batch:

    x whole ──► own samples ──► layers, as they are ──► all-gather ──► y whole
    dx  ◄── all-gather ◄──                        ◄── own samples ◄── dy

A context variable tells layers which samples this rank has: Dropout draws random numbers by the
numbers of these samples, and BatchNorm sums its moments over all ranks. Each rank computes the
gradients of weights from its samples, and they are summed over the ranks once a step
(`replicas/bucket_sums.py`).
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import accumulate
from typing import Any, ClassVar, NamedTuple, TypeAlias

import numpy as np

from nnmpi.arrays.backend import Array
from nnmpi.autograd import Tensor, as_tensor
from nnmpi.autograd.ops.norm import Moments
from nnmpi.collectives.step import bounds
from nnmpi.comm import Comm
from nnmpi.nn import Module
from nnmpi.nn.passes import UNTRACKED, BatchStats, Pass, current_pass
from nnmpi.parallel.batch_stats import Synced
from nnmpi.parallel.tensor import ops

# ---- layers by samples


def sample_bounds(x: Any, comm: Comm) -> ops.Bounds:
    """Returns bounds of the samples of a micro-batch: rank r has bounds[r] to bounds[r + 1] - 1. In
    a training step all ranks know their number, and divide it evenly; elsewhere they exchange
    it."""
    current = current_pass.get()
    if current is not None and current.samples is not None:
        return bounds(len(current.samples), comm.size)
    counts = np.empty(comm.size, np.int64)
    counts[comm.rank] = len(x)
    comm.all_gather(counts)
    return (0, *accumulate(counts.tolist()))


class BySamples(Module):
    """The base of layers that are divided by samples: each rank along tp has whole weights.

    takes          for each input, True if the layer gets all samples; False: this rank's samples
    gather_output  True if the output is all-gathered, so that each rank gets all samples
    """

    comm: Comm
    takes: tuple[bool, ...]
    gather_output: bool
    fuses_as: ClassVar[type[Module]] = Module  # in subclasses, as for the ordinary layer

    def forward(self, *inputs: Any, **fused: Any) -> Tensor:
        tensors, comm = [as_tensor(x) for x in inputs], self.comm
        if True in self.takes:
            at = bounds(len(tensors[self.takes.index(True)]), comm.size)
        else:
            at = sample_bounds(tensors[0], comm)
        pairs = zip(tensors, self.takes, strict=True)
        mine = [ops.scatter(x, comm, at, 0) if is_whole else x for x, is_whole in pairs]
        with on_own_samples(comm, at):
            y: Tensor = super().forward(*mine, **fused)
        return ops.gather(y, comm, at, 0) if self.gather_output else y


@contextmanager
def on_own_samples(comm: Comm, at: ops.Bounds) -> Iterator[None]:
    """Returns a context in which layers get only this rank's samples of a micro-batch but compute
    as if they got all: Dropout draws the same random numbers, and BatchNorm has the statistics of
    all samples. Rank r has the samples at[r] to at[r + 1] - 1."""
    current = current_pass.get() or Pass(0)
    samples = np.arange(at[-1]) if current.samples is None else current.samples
    stats = (
        current.batch_stats
        if current.batch_stats is UNTRACKED
        else NestedStats(comm, current.batch_stats)
    )
    token = current_pass.set(
        current._replace(
            samples=samples[slice(*ops.span_of(at, comm))],
            batch_stats=stats,
            batch=at[-1] if current.batch is None else current.batch,
        )
    )
    try:
        yield
    finally:
        current_pass.reset(token)


class NestedStats:
    """BatchNorm statistics over several levels of ranks: sums the moments over `comm`, then passes
    them to `others`, which sums them over further ranks."""

    def __init__(self, comm: Comm, others: BatchStats) -> None:
        self._ranks, self._others = Synced(comm), others

    def moments(self, local: Moments, track: Callable[[Moments], None]) -> Moments:
        # running statistics follow the whole batch, so those over these ranks are not tracked
        of_ranks = self._ranks.moments(local, lambda moments: None)
        return self._others.moments(of_ranks, track)

    def sum(self, sums: Array) -> Array:
        return self._others.sum(self._ranks.sum(sums))


# ---- specs


class Replicated(NamedTuple):
    """A spec says how ranks along tp hold a layer's input or output whose channels are not cut:
    here every rank has all of it, `sum` is an all-reduce, and `whole` gathers nothing."""

    comm: Comm

    def of(self, x: Any, is_part: bool = False) -> "Spec":
        """Returns the spec for one call with an input x, with only this rank's samples if
        `is_part`. Only SampleSharded reads x."""
        return self

    def sum(self, terms: Array, order: Sequence[int] | None = None) -> Array:
        """Returns the part of the sum of `terms` over ranks that this rank has: here all of it. The
        memory of `terms` may be reused. `order` is as `all_reduce` takes it."""
        ops.all_reduce(terms, self.comm, order)
        return terms

    def whole(self, part: Array) -> Array:
        """Returns the whole activation, given the part that this rank has: here all of it."""
        return part


class AxisSharded(NamedTuple):
    """The spec of what the ranks of `comm` cut along an axis (0: samples, 1: positions): rank r has
    bounds[r] to bounds[r + 1] - 1. `sum` is a reduce-scatter, and `whole` an all-gather."""

    comm: Comm
    bounds: ops.Bounds
    axis: int = 1

    def of(self, x: Any, is_part: bool = False) -> "Spec":
        return self

    def sum(self, terms: Array, order: Sequence[int] | None = None) -> Array:
        return ops.reduce_scatter(terms, self.comm, self.bounds, self.axis)

    def whole(self, part: Array) -> Array:
        return ops.all_gather(part, self.comm, self.bounds, self.axis)


Spec: TypeAlias = Replicated | AxisSharded


class SampleSharded(NamedTuple):
    """Stands for the spec of what ranks cut along samples, while their number is not known: in each
    call of the layer, `of` returns the AxisSharded for the samples of that call."""

    comm: Comm

    def of(self, x: Any, is_part: bool = False) -> Spec:
        cut = sample_bounds(x, self.comm) if is_part else bounds(len(x), self.comm.size)
        return AxisSharded(self.comm, cut, 0)


LayerSpec: TypeAlias = Spec | SampleSharded
"""The spec that a layer has; its `of` returns the spec of each call."""
