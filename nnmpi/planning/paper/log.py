"""StepLog: the exchanges of one rank in a step, in the order in which they were first started."""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TypeAlias

from nnmpi.collectives.step import Collective
from nnmpi.parallel.arrangement.exchanges import Exchange
from nnmpi.parallel.recorder import Do, Recorder
from nnmpi.parallel.step_list import op as lists
from nnmpi.schedules.op import Kind

NO_STAGE = -1

WORDS = {"tp": "activations", "cp": "keys", "pp": "activations", "model": "agreement"}
"""By axis, what exchanges within a pass carry; those along dp carry moments of BatchNorm."""


SENT = {Kind.F: Kind.SEND_F, Kind.B: Kind.SEND_B}
"""The operation under which messages between stages are logged, by the pass that sends them."""


Entry: TypeAlias = tuple[str, int, str, Kind, int, Exchange]
"""An exchange as it is logged: see `StepLog.entries`."""


class StepLog(Recorder):
    """Logs the exchanges of one rank's step, and counts equal ones; each is logged with the
    operation of the program (F, B, REDUCE, ...) that starts it.

    It is the recorder of an executor, which tells it the operation. On paper nothing takes time, so
    there are no waits, unlike in `Recording` of --trace, but every exchange with its ranks and
    length.

    entries   how often each exchange was started, by its axis, its position among the sums of
              gradients (their order decides what hides them; 0 for other exchanges), its word, its
              operation, its stage and itself
    overlaps  whether sums of gradients start during backward passes
    zero      the stage of ZeRO: from 2 on each backward pass scatters its gradients, and with 3
              layers gather their parameters
    """

    def __init__(self, zero: int = 0, overlaps: bool = True) -> None:
        self.entries: Counter[Entry] = Counter()
        self._zero, self._overlaps = zero, overlaps
        self._kind, self._stage = self._last_pass = Kind.UPDATE, NO_STAGE
        self._every = 1

    def note(self, axis: str, exchange: Exchange, started: bool, times: int = 1) -> None:
        """Logs an exchange over the ranks of an axis, in the operation that is being executed.

        Exchanges that are started along dp (sums of gradients, gathers of parameters) continue
        beside passes, so they belong to no stage. So do messages along dp within passes, which have
        compressed gradients.
        """
        kind, stage, word = self._kind, self._stage, WORDS.get(axis, "moments")
        started |= exchange.operation is Collective.MESSAGE and kind is not Kind.UPDATE
        if axis == "pp":
            kind = SENT.get(kind, kind)
        elif axis == "dp" and started:
            stage = NO_STAGE
            if exchange.operation is Collective.ALL_GATHER and self._zero:
                kind, word = Kind.F if self._zero == 3 else Kind.UPDATE, "parameters"
            else:
                word = "gradients" if self._stage != NO_STAGE else "sums"
                kind = Kind.B if self._zero > 1 else Kind.REDUCE
        elif stage == NO_STAGE and axis != "model":
            word = "gradients" if axis == "tp" else "scalars"
        # sums at the end of a step keep their order: it decides which of them passes can hide
        place = len(self.entries) if kind is Kind.REDUCE else 0
        exchange = exchange._replace(every=self._every)
        self.entries[axis, place, word, kind, stage, exchange] += times

    def clear(self) -> None:
        """Forgets all exchanges, so that another step can be logged."""
        self.entries.clear()

    def exchanges(self) -> dict[str, list[Exchange]]:
        """The logged exchanges by axis, each with how often it happened in the step."""
        by_axis: dict[str, list[Exchange]] = {}
        for (axis, _, word, kind, stage, exchange), times in self.entries.items():
            logged = exchange._replace(what=word, during=kind, stage=stage, times=times)
            by_axis.setdefault(axis, []).append(logged)
        return by_axis

    @contextmanager
    def once_in(self, steps: int) -> Iterator[None]:
        outer, self._every = self._every, steps
        yield
        self._every = outer

    def recorded(self, name: str, do: Do) -> Do:
        def logged(op: lists.Op) -> None:
            outer = self._kind, self._stage
            self._kind, self._stage = self._within(op)
            try:
                do(op)
            finally:
                self._kind, self._stage = outer

        return logged

    def _within(self, op: lists.Op) -> tuple[Kind, int]:
        """The operation of a program, and its stage, that do what an operation of a list does."""
        if op.kind in lists.PASSES:
            self._last_pass = Kind(op.kind.value), op.stage
            return self._last_pass
        if op.kind in lists.MESSAGES:
            return Kind(op.kind.value), op.stage
        if op.kind is lists.Kind.NOTE:
            return Kind.REDUCE, NO_STAGE
        if op.kind is lists.Kind.SUM and self._overlaps:
            return self._last_pass
        return Kind.UPDATE, NO_STAGE
