"""StepLog: the exchanges of one rank in a step, by the operations of its list that start them."""

from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TypeAlias

from nnmpi.parallel.arrangement.exchanges import Exchange
from nnmpi.parallel.recorder import Do, Recorder
from nnmpi.parallel.step_list.op import NONE, PASSES, SENDS, Kind, Op

WORDS = {"tp": "activations", "cp": "keys", "pp": "activations", "model": "agreement"}
"""By axis, what exchanges of passes carry; those along dp carry moments of BatchNorm."""

OF_BUCKETS = {
    Kind.GATHER: "parameters",
    Kind.NOTE: "gradients",
    Kind.SUM: "gradients",
    Kind.FINISH: "sums",
    Kind.TIES: "gradients",
    Kind.TERMS: "gradients",
}
"""The content of exchanges of operations on buckets; FINISH has later phases of compressed sums."""

SENDING_OP = {Kind.F: Kind.SEND_F, Kind.B: Kind.SEND_B}
"""The operation under which messages between stages are logged, by the pass that sends them."""

Entry: TypeAlias = tuple[str, Exchange]
"""An exchange as it is logged, with its axis."""


class StepLog(Recorder):
    """Logs the exchanges of one rank's step, and counts equal ones.

    It is the recorder of an executor, which tells it the operation. On paper nothing takes time, so
    there are no waits, unlike in `Recording` of --trace, but every exchange with its ranks and
    length.

    entries   how often each exchange was started
    by_op     the exchanges of an operation on a bucket, or of one that is on none, by its kind and
              bucket: those of the last time, as each time is the same
    """

    def __init__(self) -> None:
        self.clear()
        self._op, self._every = Op(Kind.APPLY), 1

    def clear(self) -> None:
        """Forgets all exchanges, so that another step can be logged."""
        self.entries = Counter[Entry]()
        self.by_op = defaultdict[tuple[Kind, int], list[Exchange]](list)

    def note(self, axis: str, exchange: Exchange, started: bool = False, times: int = 1) -> None:
        """Logs an exchange over the ranks of an axis, in the operation that is being executed.

        Without an operation, as between steps, values of replicas are started, scalars are not.
        """
        kind, stage = self._op.kind, NONE
        word = OF_BUCKETS.get(kind) or WORDS.get(axis, "parameters" if started else "scalars")
        if kind in PASSES or kind in SENDS:
            stage, word = self._op.stage, WORDS.get(axis, "moments")
            kind = SENDING_OP.get(kind, kind) if axis == "pp" else kind
        exchange = exchange._replace(what=word, during=kind, stage=stage, every=self._every)
        self.entries[axis, exchange] += times
        if stage == NONE:
            self.by_op[kind, self._op.at].append(exchange)

    def exchanges(self) -> dict[str, list[Exchange]]:
        """The logged exchanges by axis, each with how often it happened in the step."""
        by_axis: dict[str, list[Exchange]] = {}
        for (axis, exchange), times in self.entries.items():
            by_axis.setdefault(axis, []).append(exchange._replace(times=times))
        return by_axis

    @contextmanager
    def once_in(self, steps: int) -> Iterator[None]:
        outer, self._every = self._every, steps
        yield
        self._every = outer

    def recorded(self, name: str, do: Do) -> Do:
        def logged(op: Op) -> None:
            outer, self._op = self._op, op
            if op.kind not in PASSES:
                self.by_op.pop((op.kind, op.at), None)
            try:
                do(op)
            finally:
                self._op = outer

        return logged
