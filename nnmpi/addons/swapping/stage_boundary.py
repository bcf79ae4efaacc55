"""StageBoundary: passes activations and gradients between two consecutive stages of one rank,
without messages and without copies.

    stage s     StageBoundary.put ── activation ──► StageBoundary.next_input   stage s + 1
                StageBoundary.seeds ◄── gradient ── StageBoundary.give_back

An activation is released as soon as the next stage's pass is over, unless the backward pass needs
it or the stage will be recomputed: an array of the same shape that has memory for only one element
replaces it.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from nnmpi.addons.swapping.placement import Placement, Placements
from nnmpi.arrays.backend import Array
from nnmpi.arrays.kernels import Vjp
from nnmpi.autograd import Tensor
from nnmpi.data import StepBatch
from nnmpi.parallel.recorder import Do
from nnmpi.parallel.step.channels import Channels, Sends
from nnmpi.parallel.step.ports import Sink, Source
from nnmpi.parallel.step.stage import joined
from nnmpi.schedules.op import Kind


def placeholder(array: Array) -> Array:
    """Returns zeros of this shape in the memory of one element."""
    return np.broadcast_to(np.zeros((), array.dtype), array.shape)


class StageInput(Tensor):
    """The input of a stage as a leaf tensor, whose gradient is passed to the previous stage."""

    __slots__ = ()

    def receive(self, vjp: Vjp, g: Any) -> None:
        new = vjp(g, None)
        self.grad_array = new if self.grad_array is None else self.grad_array + new


class StageBoundary(Source, Sink):
    """Connects two consecutive stages of one rank, for one micro-batch at a time.

    recomputed   True if the next stage is recomputed, and so needs its input again
    on_put       called with each activation before the next stage takes it
    """

    has_memory = True

    def __init__(
        self, requires_grad: bool, recomputed: bool, on_put: Callable[[np.ndarray], None]
    ) -> None:
        self._requires_grad, self._recomputed, self._on_put = requires_grad, recomputed, on_put
        self._empty()

    def _empty(self) -> None:
        self._array: Array | None = None
        self._leaf: StageInput | None = None
        self._gradient: Array | None = None

    def begin(self, load: StepBatch) -> None:
        """Drops arrays that are left of an earlier step that was aborted."""
        self._empty()

    # ---- for the previous stage

    def root(self, micro: int, y: Any) -> Tensor:
        return joined(y)

    def put(self, micro: int, outputs: Sequence[Array]) -> None:
        (self._array,) = outputs
        self._on_put(self._array)
        self._like = placeholder(self._array)

    def seeds(self, micro: int, outputs: Sequence[Array]) -> Sequence[Array]:
        gradient, self._gradient = self._gradient, None
        like = self._like
        return [np.zeros(like.shape, like.dtype) if gradient is None else gradient]

    def evaluate(self, micro: int, y: Any) -> None:
        self._array = y.array

    # ---- for the next stage

    def next_input(self, micro: int) -> Tensor:
        array, self._array = self._array, None
        assert array is not None
        self._leaf = StageInput(array, self._requires_grad)
        return self._leaf

    def forward_done(self) -> None:
        """Called after the forward pass of the next stage: releases the memory of the activation,
        unless the stage will be recomputed from it."""
        leaf, self._leaf = self._leaf, None
        if leaf is not None and not self._recomputed:
            leaf.array = placeholder(leaf.array)

    def done(self, micro: int) -> None:
        self._leaf = None  # left by an evaluation

    def give_back(self, micro: int, x: Any) -> None:
        self._gradient = x.grad_array
        x.array = placeholder(x.array)


class LocalChannels(Channels):
    """The connections between stages on a rank that has all; `ops` are the functions for WRITE and
    READ."""

    def __init__(self, boundaries: list[StageBoundary], ops: Mapping[Kind, Do]) -> None:
        self.sends, self.ops = Sends(), ops
        self.outlets: Any = dict(enumerate(boundaries))
        self.inlets: Any = dict(enumerate(boundaries, 1))
        self.is_needed = False

    def poll(self) -> None:
        """Does nothing: there are no messages."""


def stage_boundaries(
    plan: Placements,
    takes: Sequence[bool],
    on_put: Callable[[int, np.ndarray], None],
) -> list[StageBoundary]:
    """Returns a StageBoundary between each two consecutive stages.

    takes    takes[s] is True if a gradient flows back from stage s + 1 to stage s
    on_put   called with a stage and each of its inputs, before the stage takes it
    """
    return [
        StageBoundary(requires_grad, plan.choice[s] is Placement.RECOMPUTE, partial(on_put, s))
        for s, requires_grad in enumerate(takes, 1)
    ]
