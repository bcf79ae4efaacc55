"""LateSteps: steps on a device whose host reads what a step has shown in the next one.

    step i      F  B  UPDATE ── loss, squares ──┐ copied to the host
    step i + 1  F ─────────────────────── read ◄┘  B  UPDATE

The device decides itself how a step is clipped, and whether it is made. The host needs to know it
for the loss scale and the number of the next update: behind F of the next step, which the device
computes while the host waits. A step behind which something else is read is made as on the host.

This is for a rank without others: where there are some, UPDATE waits for what they have, too.
"""

import math
from collections.abc import Callable, Generator, Iterable

import numpy as np

from nnmpi.data import Load
from nnmpi.device import CopyStream, Fetched
from nnmpi.kernels.steps import decide_loop
from nnmpi.optim import Optimizer
from nnmpi.optim.loss_scale import Scaler
from nnmpi.parallel.arrangement.arrangement import Arrangement
from nnmpi.parallel.recorder import Do
from nnmpi.parallel.step.control import StepControl
from nnmpi.parallel.step.executor import Around, Executor, StepResult, StepState
from nnmpi.parallel.step.update import Outcome
from nnmpi.parallel.stores.local import LocalStore
from nnmpi.schedules.op import Kind, Op

UNREAD = Outcome(0.0, 0.0, True)
"""Of a step whose outcome takes its place later."""


class LateSteps:
    """Fills the place of an update, of what is done around B, and of the steps of an executor.

    now: an update that waits
    """

    def __init__(
        self,
        store: LocalStore,
        optimizer: Optimizer,
        clip_norm: float | None,
        scaler: Scaler | None,
        now: Callable[[int], Outcome],
        control: StepControl,
    ) -> None:
        self._store, self._optimizer, self._scaler = store, optimizer, scaler
        self._most = math.inf if clip_norm is None else clip_norm
        self._now, self._control = now, control
        self._copies = CopyStream(store.on)
        self._unread: Fetched | None = None
        self._outcome, self._end, self._counts = UNREAD, 0, list[int]()
        self.around: Around = [(kind, self._behind_reading) for kind in (Kind.B, Kind.I)]

    def apply(self, step: int) -> Outcome:
        """An update, which waits if it is the last one of its epoch, or something reads it."""
        self._read()
        if step + 1 == self._end or self._control.reads(step + 1):
            return self._now(step)
        self._launch(step)
        self._control.launched()
        return UNREAD

    def steps(
        self, executor: Executor, loads: Iterable[Load], start: StepState, batches: int
    ) -> Generator[StepResult, None, None]:
        """The steps of an executor, each when its outcome is known."""
        self._end, last = start.step + batches - start.batch, list[StepResult]()
        for result in executor.steps(loads, start, batches):
            for one in last:
                yield one._replace(**self._outcome._asdict(), is_followed=True)
            last = [result] if self._unread is not None else []
            if not last:
                yield result

    def _launch(self, step: int) -> None:
        """One optimizer step, if the device finds all sums finite."""
        store, masters, xp = self._store, self._store.masters, self._store.on.xp
        by, shown = xp.empty(2, store.updated_dtype), xp.empty(2, np.float64)
        squares = store.squares([(store.spans[0][0], store.spans[-1][1])])
        decide_loop(store.loss, squares, masters.factor, self._most, by, shown)
        masters.factor, self._counts = by, [*self._optimizer.steps]
        self._optimizer.step(self._control.lr_factor(step))
        self._unread = Fetched(self._copies, shown)

    def _behind_reading(self, do: Do, op: Op) -> None:
        """An operation that needs the loss scale."""
        self._read()
        do(op)

    def _read(self) -> None:
        """From here on the loss scale is known, and the number of the next update: a step that was
        left out is not counted."""
        if self._unread is None:
            return
        (loss, squares), self._unread = self._unread.numbers(), None
        is_finite = math.isfinite(loss) and math.isfinite(squares)
        self._outcome = Outcome.of((loss, 0.0, not is_finite, squares))
        if not is_finite:
            self._optimizer.steps[:] = self._counts
        if self._scaler is not None:
            self._scaler.now = self._scaler.now.after(is_finite)
            self._store.masters.begin()


def late_steps(
    a: Arrangement,
    store: LocalStore,
    optimizer: Optimizer,
    scaler: Scaler | None,
    now: Callable[[int], Outcome],
    control: StepControl,
) -> LateSteps | None:
    """The steps of a rank that has a device, and no others beside it; else None."""
    if store.on.is_host or a.ranks > 1 or a.store.name != "local" or not optimizer.takes_mixed:
        return None
    return LateSteps(store, optimizer, a.config.clip_norm, scaler, now, control)
