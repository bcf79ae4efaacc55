"""StepLog: the exchanges of one rank in a step, in the order in which they were first started."""

from collections import Counter

from nnmpi.collectives.step import Collective
from nnmpi.parallel.arrangement.exchanges import Exchange
from nnmpi.parallel.recorder import Do, Recorder
from nnmpi.schedules.op import Kind, Op

NO_STAGE = -1

WORDS = {"tp": "activations", "cp": "keys", "pp": "activations", "model": "agreement"}
"""Words for the exchanges along an axis in a pass; along dp, statistics of BatchNorm."""


SENT = {Kind.F: Kind.SEND_F, Kind.B: Kind.SEND_B}
"""The operations as whose messages those count that stages tell each other in a pass."""


class StepLog(Recorder):
    """Counts equal exchanges; as the recorder of an executor it knows which operation is under way.

    On paper nothing takes time: it has no waits, as `Recording` of --trace has, but all exchanges,
    with their ranks and lengths.

    entries   how often each exchange was started, by its axis, what is told, when, and, of sums of
              gradients at the end of a step, its place among these: the order in which they begin
              says what hides them
    zero      the stage of ZeRO: from 2 on each backward pass scatters its gradients, and in 3
              layers gather their parameters
    """

    def __init__(self, zero: int = 0) -> None:
        self.entries: Counter[tuple[str, int, str, Kind, int, Exchange]] = Counter()
        self._zero, self._kind, self._stage = zero, Kind.UPDATE, NO_STAGE

    def note(self, axis: str, exchange: Exchange, started: bool, times: int = 1) -> None:
        """Logs an exchange over the ranks of an axis, in the operation under way.

        What was started along dp goes on beside passes, and belongs to no stage: sums of gradients,
        and gathers of parameters.
        """
        kind, stage, word = self._kind, self._stage, WORDS.get(axis, "moments")
        if axis == "pp":
            kind = SENT.get(kind, kind)
        elif axis == "dp" and started:
            stage = NO_STAGE
            if exchange.operation is Collective.ALL_GATHER:
                kind, word = Kind.F if self._zero == 3 else Kind.UPDATE, "parameters"
            else:
                kind, word = Kind.B if self._zero > 1 else Kind.REDUCE, "gradients"
        elif stage == NO_STAGE and axis != "model":
            word = "gradients" if axis == "tp" else "scalars"
        place = len(self.entries) if kind is Kind.REDUCE else 0
        self.entries[axis, place, word, kind, stage, exchange] += times

    def clear(self) -> None:
        """Begins another step."""
        self.entries.clear()

    def exchanges(self) -> dict[str, list[Exchange]]:
        """The exchanges by axis, each with how often it happens."""
        by_axis: dict[str, list[Exchange]] = {}
        for (axis, _, word, kind, stage, exchange), times in self.entries.items():
            logged = exchange._replace(what=word, during=kind, stage=stage, times=times)
            by_axis.setdefault(axis, []).append(logged)
        return by_axis

    def recorded(self, name: str, do: Do) -> Do:
        def logged(op: Op) -> None:
            outer = self._kind, self._stage
            self._kind, self._stage = op.kind, op.stage if op.micro >= 0 else NO_STAGE
            try:
                do(op)
            finally:
                self._kind, self._stage = outer

        return logged
