"""Recording: the Recorder of --trace, in memory that does not grow with the steps of a run."""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from nnmpi.comm import Comm, Work
from nnmpi.parallel.recorder import Do, Recorder
from nnmpi.schedules.op import Kind, Op

CAPACITY = 200_000  # events, and works, of a rank: about 7 MB, and 5 MB

EVALUATION = -1
"""The step of what is done between steps."""

NO_LIMIT = np.iinfo(np.int32).max

EVENT = np.dtype(
    [
        ("kind", "u1"),  # of KINDS
        ("stage", "i2"),
        ("micro", "i4"),
        ("step", "i4"),
        ("began", "f8"),
        ("ended", "f8"),
        ("memory", "i8"),  # bytes of the process, at the end of what computes; 0: not known
    ]
)

WORK = np.dtype([("operation", "i4"), ("step", "i4"), ("began", "f8"), ("ended", "f8")])

WAITS = {
    "wait F": "receive F",
    "wait B": "receive B",
    "signal": "signal",
    "sums": "sum gradients",
    "agree": "agree",
    "statistics": "sum statistics",
    "settle": "barrier",
    "tensor": "sum channels",
    "gather": "gather parameters",
}
"""Within an operation, a rank waits for others, and then for what follows once they are there: an
activation, a gradient, what stages of pipedream tell each other besides; the sums of gradients, the
agreement on a step, the sums of BatchNorm; that all have updated parameters that they share; the
sums of sharded layers; parameters that are gathered."""

KINDS = (*(kind.value for kind in Kind), *WAITS, "exchange", "evaluate")
"""Kinds of events; `exchange` is that of a gradient for parameters with a server."""

PASSES = ("F", "B", "I", "W", "RECOMPUTE")
COMPUTE = (*PASSES, "UPDATE")

CODES = {kind: code for code, kind in enumerate(KINDS)}


def which(events: np.ndarray, *kinds: str) -> np.ndarray:
    """Which events are of these kinds."""
    return np.isin(events["kind"], [CODES[kind] for kind in kinds])


def unknown() -> int:
    """The memory of the process where there is no /proc."""
    return 0


@contextmanager
def resident_bytes() -> Iterator[Callable[[], int]]:
    """A function that returns the memory of this process, as Linux counts it, for use within the
    context; it takes a microsecond or two."""
    try:
        file = os.open("/proc/self/statm", os.O_RDONLY)
    except OSError:
        yield unknown
        return
    page = os.sysconf("SC_PAGE_SIZE")
    try:
        yield lambda: int(os.pread(file, 64, 0).split()[1]) * page
    finally:
        os.close(file)


class Works(list[Work]):
    """The works under way on a rank; it notes when those of steps begin and end, up to a capacity.

    A helper thread may end them, so they are not among the events of a Recording.
    """

    def __init__(self, now: Callable[[], float], capacity: int) -> None:
        self._now, self.step = now, EVALUATION
        self.operations: dict[Any, int] = {}
        self._rows, self._at = np.empty(capacity, WORK), dict[Work, int]()
        self._used = 0

    def append(self, work: Work) -> None:
        super().append(work)
        if self.step != EVALUATION and self._used < len(self._rows):
            code = self.operations.setdefault(work.signature, len(self.operations))
            self._rows[self._used] = code, self.step, self._now(), np.nan
            self._at[work] = self._used
            self._used += 1

    def remove(self, work: Work) -> None:
        super().remove(work)
        at = self._at.pop(work, None)
        if at is not None:
            self._rows["ended"][at] = self._now()

    @property
    def limit(self) -> int:
        """The steps below are complete."""
        is_full = self._used == len(self._rows)
        return int(self._rows["step"][-1]) if is_full else NO_LIMIT

    def ended(self, limit: int) -> np.ndarray:
        """The works of steps below that have ended, in the order of their starts."""
        rows = self._rows[: self._used]
        found: np.ndarray = rows[(rows["step"] < limit) & ~np.isnan(rows["ended"])]
        return found


class Recording(Recorder):
    """Keeps the first events of a run, up to its capacity."""

    def __init__(self, now: Callable[[], float], capacity: int = CAPACITY) -> None:
        self.now = now
        self._events, self._used = np.empty(capacity, EVENT), 0
        self._step, self._memory = EVALUATION, unknown
        self.works = Works(now, capacity)

    @contextmanager
    def of_run(self, comm: Comm) -> Iterator[None]:
        """Within it works are recorded too, and memory."""
        with resident_bytes() as self._memory, comm.works_in(self.works):
            try:
                yield
            finally:
                self._memory, self.works.step = unknown, EVALUATION

    def begin(self, step: int) -> None:
        self._step = self.works.step = step

    def add(self, name: str, began: float, micro: int = -1, stage: int = -1) -> None:
        if self._used < len(self._events):
            what = CODES[name], stage, micro, self._step, began, self.now()
            self._events[self._used] = *what, self._memory() if name in COMPUTE else 0
            self._used += 1

    def recorded(self, name: str, do: Do) -> Do:
        def recorded(op: Op) -> None:
            began = self.now()
            do(op)
            self.add(name, began, op.micro, op.stage)

        return recorded

    @contextmanager
    def evaluation(self) -> Iterator[None]:
        self._step = self.works.step = EVALUATION
        began = self.now()
        yield
        self.add("evaluate", began)

    @property
    def limit(self) -> int:
        """The steps below are complete: those up to the last one that ended with an UPDATE."""
        events = self._events[: self._used]
        updates = events["step"][which(events, "UPDATE")]
        is_full = self._used == len(self._events)  # and events may be missing
        own = 1 + int(updates.max(initial=-1)) if is_full else NO_LIMIT
        return min(own, self.works.limit)

    def events(self, limit: int) -> np.ndarray:
        """The events of steps below, in the order of their ends; no wait without its operation."""
        events = self._events[: self._used]
        events = events[events["step"] < limit]
        operations = np.flatnonzero(~which(events, *WAITS))
        return events[: 1 + operations.max(initial=-1)]
