"""Update: ranks agree on the sums of a step, clip the gradient, and update the parameters they own.

    agree   loss, request, and the squared norm of the gradient; is all of it finite?
    clip    by the norm over all parameters, each number counted once
    apply   the optimizer's step, or none if a number was not finite

The store brings the sums over dp: loss and request have come with the gradients, or come now.
Where a model is spread over ranks of other axes, one more all-reduce sums what these have.

Rules:

- A step waits for a device here and nowhere else, once, for the numbers of `totals`, or not at all
  (`deferred_steps.py`). What else is to be read joins that array; `tests/strict/` counts the waits.
- What is decided is decided from sums that are the same on all ranks: to clip, to skip the step,
  which parameters have a gradient. A decision from a rank's own gradient lets copies drift apart.
- Each number counts once. `counts_loss` and `counts` say on which rank: a new axis along which
  ranks have copies or parts has to be right in both (`Layout`, `PartTable`).
- `settle` is last: until then other ranks may write to values that this rank reads.
- Between what ranks agree on and `settle` no message is sent, so nothing is half done on a rank
  that is left. What is known of the step is kept until the next one is summed.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple, Self

import numpy as np

from nnmpi.arrays import backend
from nnmpi.nn.parameter import Parameter
from nnmpi.nn.utils import clip_factor
from nnmpi.optim import Optimizer
from nnmpi.parallel.arrangement.flat_buffer import LOSS, REQUEST, USED, FlatSlice
from nnmpi.parallel.layout import Layout
from nnmpi.parallel.recorder import waiting
from nnmpi.parallel.stores.local import LocalStore

DECIDED = 4
"""The first numbers of a decision: loss, request, whether something is not finite, squares. Behind
them is on how many ranks each tied parameter has a gradient."""


class Outcome(NamedTuple):
    """The outcome of a step; the same on all ranks."""

    loss: float
    request: float
    updated: bool
    gradient_norm: float | None = None  # before clipping

    @classmethod
    def of(cls, decision: Sequence[float]) -> Self:
        """The outcome that a decision of the ranks describes."""
        loss, request, not_finite, squares, *_ = decision
        return cls(loss, request, not not_finite, squares**0.5)


class Update:
    """The second half of a step, after the gradients have been summed.

    `counts` tells which parameters this rank counts in the norm of the gradient: of several copies
    in one model, one. `tied` are those that other ranks of the model have too, the same on all.

    summed     the number of steps whose sums this rank knows
    decision   what all ranks have agreed on in the last one, as soon as this rank knows
    version    the number of steps after which values here are as they are; 0 before the first one
    """

    def __init__(
        self,
        store: LocalStore,
        optimizer: Optimizer,
        clip_norm: float | None,
        lr_factor: Callable[[int], float],
        layout: Layout,
        counts: Sequence[bool],
        tied: Sequence[Parameter] = (),
    ) -> None:
        self._store, self._optimizer = store, optimizer
        self._clip_norm, self._lr_factor = clip_norm, lr_factor
        self._counted = list(_counted(store, counts))
        self._model, self._counts_loss = layout.model, layout.counts_loss
        self._tied, self._own = tied, {*store.parameters}
        self.summed = self.version = 0
        self.decision: Sequence[float] | None = None

    def apply(self, step: int) -> Outcome:
        """One optimizer step, if all sums are finite; the only place that waits for a device."""
        sums = self._sums()
        self.summed, self.decision = step + 1, None
        if self._model.size > 1:
            sums = self._agreed(sums)
        outcome = self.carry_out(sums)
        self._store.settle()
        return outcome

    def carry_out(self, decision: Sequence[float]) -> Outcome:
        """Carries out the decision on the last step, without messages: clips, and updates."""
        self.decision = decision
        outcome, squares, *used = Outcome.of(decision), *decision[DECIDED - 1 :]
        for p, times in zip(self._tied, used, strict=True):
            p.has_grad = p in self._own and times > 0
        if outcome.updated:
            if self._clip_norm is not None:  # as `optim.clip_grad_norm`, over all ranks
                self._store.scale_gradients(clip_factor(squares**0.5, self._clip_norm))
            self._optimizer.step(self._lr_factor(self.summed - 1))
        if (scaler := self._store.scaler) is not None:
            scaler.current = scaler.current.after(outcome.updated)
        self.version = self.summed
        return outcome

    def _sums(self) -> list[float]:
        """The sums over dp that decide what is done; marks parameters with a gradient on any rank.

        loss | request | whether something is not finite | squares of the gradient | use of each
        that is tied
        """
        store = self._store
        *scalars, squares = backend.to_list(store.totals(self._counted))
        uses = scalars[USED : USED + len(store.parameters)]
        for p, times in zip(store.parameters, uses, strict=True):
            p.has_grad = times > 0
        finite = math.isfinite(scalars[LOSS]) and math.isfinite(squares)
        loss = scalars[LOSS] if self._counts_loss else 0.0
        sums = [loss, scalars[REQUEST], not finite, squares]
        for p in self._tied:
            sums.append(p.has_grad)
        return sums

    def _agreed(self, sums: list[float]) -> list[float]:
        """The sums over all ranks that hold one model, by one all-reduce in float64 of those of the
        ranks along axes other than dp."""
        row = np.array(sums, float)
        with waiting("agree"):
            self._model.all_reduce(row, "doubling")
        totals: list[float] = row.tolist()
        return totals


def _counted(store: LocalStore, counts: Sequence[bool]) -> Iterator[FlatSlice]:
    """The stretches of parameters that this rank counts in the norm; some may be empty."""
    start = end = store.spans[0][0]
    for is_counted, (_, stop) in zip(counts, store.spans, strict=True):
        if is_counted:
            end = stop
        else:
            yield start, end
            start = end = stop
    yield start, end
