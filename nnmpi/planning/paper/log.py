"""StepLog: the exchanges (collectives and messages) of one rank in a simulated step, by the
operation that starts them."""

from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext

from nnmpi.arrays.meta.log import logged_calls
from nnmpi.parallel.arrangement.exchanges import AxisExchange, Exchange
from nnmpi.parallel.facts.exchanges import WORDS
from nnmpi.parallel.recorder import Do, Recorder
from nnmpi.schedules.op import NONE, PASSES, SENDS, Kind, Op

OF_BUCKETS = {
    Kind.GATHER: "parameters",
    Kind.SEND_SUM: "gradients",
    Kind.SUM: "gradients",
    Kind.FINISH: "sums",
    Kind.TIES: "gradients",
    Kind.TERMS: "gradients",
}
"""The content of the exchanges of operations on buckets. FINISH starts later phases of compressed
sums."""

SENDING_OP = {Kind.F: Kind.SEND_F, Kind.B: Kind.SEND_B}
"""For each pass, the operation under which the messages to other stages that follow it are
logged."""


class StepLog(Recorder):
    """Logs the exchanges (collectives and messages) of one rank in a simulated step, and counts
    equal ones.

    An executor calls it as its recorder, before and after each operation. Unlike the `Recording` of
    --trace, it has no times, since a simulated step takes none.

    entries   how often each exchange was started
    by_op     a dict: (kind of operation, bucket) -> the exchanges that such an operation has
              started when it was last carried out; it starts the same ones each time
    """

    def __init__(self) -> None:
        self.clear()
        self._op, self._every = Op(Kind.APPLY), 1

    def clear(self) -> None:
        """Deletes all logged exchanges, so that another step can be logged."""
        self.entries = Counter[AxisExchange]()
        self.by_op = defaultdict[tuple[Kind, int], list[Exchange]](list)

    def note(self, axis: str, exchange: Exchange, started: bool = False) -> None:
        """Logs an exchange over the ranks of an axis, as part of the operation that runs now;
        `started` is True for a non-blocking one.

        An exchange that is made outside of any operation is logged as one of parameters if it is
        non-blocking, otherwise as one of scalars.
        """
        kind, stage = self._op.kind, NONE
        word = OF_BUCKETS.get(kind) or WORDS.get(axis, "parameters" if started else "scalars")
        if kind in PASSES or kind in SENDS:
            stage, word = self._op.stage, WORDS.get(axis, "moments")
            kind = SENDING_OP.get(kind, kind) if axis == "pp" else kind
        exchange = exchange._replace(what=word, during=kind, stage=stage, every=self._every)
        self.entries[axis, exchange] += 1
        if stage == NONE:
            self.by_op[kind, self._op.at].append(exchange)

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
                # the calls of passes are none of those that pack messages
                with logged_calls() if op.kind in PASSES else nullcontext():
                    do(op)
            finally:
                self._op = outer

        return logged
