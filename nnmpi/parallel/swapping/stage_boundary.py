"""StageBoundary: the border between two stages of one rank, as the ports of both.

    stage s     StageBoundary.put ── activation ──► StageBoundary.take     stage s + 1
                StageBoundary.seed ◄── gradient ─── StageBoundary.give_back

Nothing is copied. What crosses is let go of as soon as the pass behind it is over, unless vjps have
it, or the stage is to be computed again: an array of the same shape without numbers takes its
place.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from nnmpi.arrays.backend import Array
from nnmpi.arrays.kernels import Vjp
from nnmpi.autograd import Tensor
from nnmpi.data import Load
from nnmpi.parallel.arrangement.residence import Residence, Residences
from nnmpi.parallel.recorder import Do
from nnmpi.parallel.step.channels import Channels, Sends
from nnmpi.parallel.step.ports import Sink, Source
from nnmpi.schedules.op import Op


def placeholder(array: Array) -> Array:
    """An array of this shape and type with one number."""
    return np.broadcast_to(np.zeros((), array.dtype), array.shape)


class StageInput(Tensor):
    """An activation of the stage before; contributions to its gradient add up as on the tape."""

    __slots__ = ()

    def receive(self, vjp: Vjp, g: Any) -> None:
        new = vjp(g, None)
        self.grad = new if self.grad is None else self.grad + new


class StageBoundary(Source, Sink):
    """The sink of a stage, and the source of the next one; one micro-batch at a time.

    keeps    whether the stage behind it is computed again
    noted    is told of each activation before it is taken
    """

    has_memory = True

    def __init__(
        self, requires_grad: bool, keeps: bool, noted: Callable[[np.ndarray], None]
    ) -> None:
        self._requires_grad, self._keeps, self._noted = requires_grad, keeps, noted
        self._empty()

    def _empty(self) -> None:
        self._array: Array | None = None
        self._leaf: StageInput | None = None
        self._gradient: Array | None = None

    def begin(self, load: Load) -> None:
        """Starts a step, whatever is left of one that was broken off."""
        self._empty()

    # ---- of the stage before

    def root(self, micro: int, y: Any) -> Tensor:
        root: Tensor = y
        return root

    def put(self, micro: int, root: Tensor) -> None:
        self._array = root.data
        self._noted(root.data)
        root.data = placeholder(root.data)

    def seed(self, micro: int, root: Tensor) -> Array:
        gradient, self._gradient = self._gradient, None
        root.data = placeholder(root.data)  # of a stage that was computed again
        return np.zeros(root.shape, root.dtype) if gradient is None else gradient

    def evaluate(self, micro: int, y: Any) -> None:
        self._array = y.data

    # ---- of the stage behind it

    def take(self, micro: int) -> Tensor:
        array, self._array = self._array, None
        assert array is not None
        self._leaf = StageInput(array, self._requires_grad)
        return self._leaf

    def passed(self) -> None:
        """The forward pass of the stage behind it is over."""
        leaf, self._leaf = self._leaf, None
        if leaf is not None and not self._keeps:
            leaf.data = placeholder(leaf.data)

    def done(self, micro: int) -> None:
        self._leaf = None  # of an evaluation

    def give_back(self, micro: int, x: Any) -> None:
        self._gradient = x.grad
        x.data = placeholder(x.data)


class LocalChannels(Channels):
    """The borders of a rank that has all stages: nothing is sent."""

    def __init__(self, boundaries: list[StageBoundary]) -> None:
        self.sends = Sends()
        self.outlets: Any = dict(enumerate(boundaries))
        self.inlets: Any = dict(enumerate(boundaries, 1))
        self.is_needed = False

    def poll(self) -> None:
        """There is nothing to move."""

    def forward(self, do: Do, op: Op) -> None:
        """A forward pass, behind which the border in front of the stage is empty."""
        do(op)
        if op.stage:
            self.inlets[op.stage].passed()


def stage_boundaries(
    plan: Residences,
    takes: Sequence[bool],
    noted: Callable[[int, np.ndarray], None] = lambda s, array: None,
) -> list[StageBoundary]:
    """The borders between stages, across which gradients come back where `takes` says so.

    noted   is told of each activation that stage s takes, before it does
    """
    return [
        StageBoundary(requires_grad, plan.choice[s] is Residence.RECOMPUTE, partial(noted, s))
        for s, requires_grad in enumerate(takes, 1)
    ]
