"""Update: ranks agree on the sums of a step, clip the gradient, and update the parameters they own.

    agree   on loss, request and the squared norm of the gradient; are all of them finite?
    clip    by the norm over all parameters, each element counted once
    norms   of parameters and their updates, if the optimizer needs them: summed over the ranks that
            have shards of a parameter
    apply   the optimizer step, or skip it if a value was not finite

The store provides the sums over dp; along other axes, one more all-reduce sums over these.

Rules:

- A step waits for a device only here, once, for the values of `step_sums`, or not at all
  (`DeferredSteps`, on a GPU). Add to that array what else has to be read; `tests/strict/` counts
  waits.
- Every decision (to clip, to skip the step, which parameters have a gradient) is made from sums
  that are the same on all ranks. A decision from a rank's own gradient would let copies of a
  parameter diverge.
- Each element counts once. `counts_loss` and `counts` say on which rank: a new axis along which
  ranks have copies or parts has to be right in both (`Layout`, `counting_flags`).
- `wait_for_updates` is last: until then other ranks may write to values that this rank reads.
- No message is sent between the last agreement (on norms, if there are any) and
  `wait_for_updates`, and no value or state changes before it, so if a rank is lost, the others have
  either all of the update or none. They keep the sums until the next step is summed.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple, Self, TypeAlias

import numpy as np

from nnmpi.arrays import backend
from nnmpi.nn.parameter import Parameter
from nnmpi.nn.utils import clip_factor
from nnmpi.optim import Optimizer
from nnmpi.parallel.arrangement.flat_buffer import LOSS, REQUEST, USED, FlatSlice
from nnmpi.parallel.layout import Layout
from nnmpi.parallel.recorder import waiting
from nnmpi.parallel.stores.local import LocalStore
from nnmpi.schedules.op import Kind

DECIDED = 4
"""The length of the fixed part of a decision, as in `Outcome.of`. Then come, for each tied
parameter, the number of ranks on which it has a gradient; and, if the optimizer needs them, two
sums of squares for each variable."""


class Outcome(NamedTuple):
    """The outcome of a training step, the same on all ranks.

    loss            the sum of the samples' losses over all ranks
    request         the sum of the ranks' requests to stop or to save; 0: there are none
    updated         False if the update was skipped, since a value was not finite
    gradient_norm   the norm of the whole gradient before clipping; None if no rank knows it
    """

    loss: float
    request: float
    updated: bool
    gradient_norm: float | None = None

    @classmethod
    def of(cls, decision: Sequence[float]) -> Self:
        """Returns the outcome of a step, given the sums over all ranks: [loss, request, number of
        ranks with a value that is not finite, squared norm of the gradient]. The last one is
        missing if no rank knows the whole gradient, as in local steps."""
        loss, request, not_finite, *squares = decision
        return cls(loss, request, not not_finite, squares[0] ** 0.5 if squares else None)


Ends: TypeAlias = Mapping[Kind, Callable[[int], Outcome | None]]
"""AGREE or APPLY -> the function that carries it out in a step."""


class Norms(NamedTuple):
    """How squared norms of parameters and of their changes (LAMB and others) are summed over ranks.

    variables   for each parameter of the optimizer, its number in the graph of the whole model
    number      how many parameters and buffers the graph has
    are_cut     True if the ranks along dp each update a shard of a parameter (ZeRO)

    A parameter that several ranks have is counted several times, and its change as often:
    optimizers use only the quotient of the two norms.
    """

    variables: Sequence[int]
    number: int
    are_cut: bool


class Update:
    """Ends a step: sums loss and gradient norm over ranks, clips, makes the optimizer step.

    counts     for each parameter, whether this rank counts it in the gradient norm: of the ranks
               with the same parameter only one counts it
    tied       the parameters that several stages use; the same sequence on all ranks
    summed     the number of steps whose sums this rank knows
    decision   the sums over all ranks that decided the last step (`Outcome.of`, then one number for
               each of `tied`, then squares); None before the first step
    version    the number of steps that this rank's values contain; 0 at first
    """

    def __init__(
        self,
        store: LocalStore,
        optimizer: Optimizer,
        clip_norm: float | None,
        lr_factor: Callable[[int], float],
        layout: Layout,
        counts: Sequence[bool],
        norms: Norms,
        tied: Sequence[Parameter] = (),
    ) -> None:
        self._store, self._optimizer = store, optimizer
        self._clip_norm, self._lr_factor = clip_norm, lr_factor
        slices = _counted_slices(store, counts)
        self._norm_shards = [shard for bounds in slices for shard in store.norm_shards(*bounds)]
        self._model, self._counts_loss = layout.model, layout.counts_loss
        self._norms = norms
        self._tied, self._own = tied, {*store.parameters}
        self.summed, self.version, self._is_prepared = 0, 0, False
        self.decision: Sequence[float] | None = None

    @property
    def ends(self) -> Ends:
        return {Kind.AGREE: self.agree, Kind.APPLY: self.apply}

    def agree(self, step: int) -> None:
        """Carries out AGREE: sums what decides the step over all ranks, and keeps it as `decision`,
        by which `apply` updates or skips the step alike on all ranks. The gradients must be summed
        over dp by now. It clips them here, not in `apply`, since the norms of changes (`Norms`),
        which are summed last, are those of clipped gradients. This is the only place in a step
        where the host waits for a device."""
        sums = self._sums_over_dp()
        # noted before the agreement: if a rank is lost in it, this one can still make the update
        self.summed, self.decision, self._is_prepared = step + 1, None, False
        if self._model.size > 1:
            sums = self._agreed(sums)
        if self._prepare(sums).updated and (squares := self._optimizer.squares()):
            sums = [*sums, *self._summed_squares(squares)]
        self.decision = sums

    def apply(self, step: int) -> Outcome:
        """Makes an optimizer step if all agreed sums are finite; returns its outcome."""
        assert self.decision is not None
        outcome = self.carry_out(self.decision)
        self._store.wait_for_updates()
        return outcome

    def carry_out(self, decision: Sequence[float]) -> Outcome:
        """Clips the gradient and makes the optimizer step, or does neither if a value was not
        finite; returns the Outcome. `decision` is as `agree` has made it. Sends no messages."""
        self.decision = decision
        outcome, known = self._prepare(decision), decision[DECIDED + len(self._tied) :]
        if outcome.updated:
            self._store.keep_residuals()
            lr_factor = self._lr_factor(self.summed - 1)
            if known:
                squares = [n for v in self._variables() for n in known[2 * v : 2 * v + 2]]
                self._optimizer.step(lr_factor=lr_factor, squares=squares)
            else:  # also an optimizer of the user's, which need not know squares
                self._optimizer.step(lr_factor=lr_factor)
        if (scaler := self._store.scaler) is not None:
            scaler.current = scaler.current.after(outcome.updated)
        self.version = self.summed
        return outcome

    def _prepare(self, decision: Sequence[float]) -> Outcome:
        """Prepares the update, once for each step: clips the gradient to the norm `clip_norm`, and
        sets `has_grad` of each tied parameter to whether it has a gradient on any rank. Every rank
        derives the same Outcome from `decision`."""
        outcome = Outcome.of(decision[:DECIDED])
        if self._is_prepared:
            return outcome
        self._is_prepared = True
        used = decision[DECIDED : DECIDED + len(self._tied)]
        for p, times in zip(self._tied, used, strict=True):
            p.has_grad = p in self._own and times > 0
        if outcome.updated and self._clip_norm is not None:  # like `optim.clip_grad_norm`
            squares = decision[DECIDED - 1]
            self._store.scale_gradients(clip_factor(squares**0.5, self._clip_norm))
        return outcome

    def _summed_squares(self, squares: Sequence[float]) -> list[float]:
        """Sums `squares`, two numbers for each parameter that this rank updates, over all ranks
        that have a shard of it. Returns two sums for each variable of the model."""
        norms, rows = self._norms, np.zeros((self._norms.number, 2))
        rows[self._variables()] = np.reshape(squares, (-1, 2))
        row = rows.reshape(-1)
        with waiting("agree"):
            if norms.are_cut:
                self._store.dp.all_reduce(row, "doubling")
            if self._model.size > 1:
                self._model.all_reduce(row, "doubling")
        return backend.to_list(row)

    def _variables(self) -> list[int]:
        """Returns the graph's number of each parameter of the optimizer."""
        return [self._norms.variables[p.index] for p in self._optimizer.parameters]

    def _sums_over_dp(self) -> list[float]:
        """Returns the sums over dp that decide the step, and sets `has_grad` of parameters that
        have a gradient on any rank:

        loss | request to stop or save | 1 if a sum is not finite | squared norm of the gradient |
        for each parameter that several stages share, 1 if it has a gradient
        """
        store = self._store
        *scalars, squares = backend.to_list(store.step_sums(self._norm_shards))
        uses = scalars[USED : USED + len(store.parameters)]
        for p, times in zip(store.parameters, uses, strict=True):
            p.has_grad = times > 0
        # one gradient that is not finite is enough to make the sum of squares so
        finite = math.isfinite(scalars[LOSS]) and math.isfinite(squares)
        loss = scalars[LOSS] if self._counts_loss else 0.0
        return [loss, scalars[REQUEST], not finite, squares, *(p.has_grad for p in self._tied)]

    def _agreed(self, sums: list[float]) -> list[float]:
        """Sums numbers over the ranks of one replica, in float64, by one all-reduce."""
        row = np.array(sums, float)
        with waiting("agree"):
            self._model.all_reduce(row, "doubling")
        return backend.to_list(row)


def _counted_slices(store: LocalStore, counts: Sequence[bool]) -> Iterator[FlatSlice]:
    """Yields the slices of gradients that this rank counts in the norm, neighbours joined."""
    start = end = store.spans[0][0]
    for is_counted, (_, stop) in zip(counts, store.spans, strict=True):
        if is_counted:
            end = stop
        else:
            yield start, end
            start = end = stop
    yield start, end
