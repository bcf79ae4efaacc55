"""Records the operations of a rank for --trace, in bounded memory.

The records, called entries, are of three kinds: operations of the training step, the waits within
them, and Works (collectives and messages that run in the background). All have the same fields,
among them the times at which they began and ended. Operations and waits are stored in the order of
their ends.
"""

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from struct import Struct
from typing import NamedTuple

import numpy as np

from nnmpi.comm import Comm, Work
from nnmpi.comm.call_log import CallSignature
from nnmpi.parallel.recorder import Do, Recorder, Timed
from nnmpi.schedules.op import Kind, Op

CAPACITY = 400_000  # entries of a rank: 15 MB

EVALUATION = -1
"""The step number of events between steps, such as evaluations."""

NO_LIMIT = np.iinfo(np.int32).max

ENTRY = np.dtype(
    [
        ("kind", "i4"),  # an index of EVENT_KINDS; larger: of the operations of Works
        ("stage", "i2"),
        ("micro", "i4"),
        ("step", "i4"),
        ("began", "f8"),
        ("ended", "f8"),
        ("memory", "i8"),  # bytes of the process at the end of a computing operation; 0: not known
    ]
)
PACKED = Struct("=ihiiddq")  # an ENTRY: packing bytes is faster than assigning a NumPy row

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
"""Waits within operations, each with the communication that follows when the other ranks are ready.

They wait for an activation, a gradient, or other messages between stages of pipedream; for sums of
gradients, agreement on a step, sums of BatchNorm; for a barrier after shared parameters are
updated; for sums of sharded layers; for gathered parameters."""

EVENT_KINDS = (*(kind.value for kind in Kind), *WAITS, "exchange", "evaluate")
"""Kinds of events; `exchange` is a worker's exchange of gradients for parameters with a server."""

PASSES = ("F", "B", "I", "W", "RECOMPUTE")
COMPUTE = (*PASSES, "AGREE", "APPLY", "WRITE", "READ", "PUSH", "ADD")
"""Kinds of events that are no communication. WRITE and READ only start work of a thread."""


CODES = {kind: code for code, kind in enumerate(EVENT_KINDS)}


def which(events: np.ndarray, *kinds: str) -> np.ndarray:
    """Returns a mask of the events whose kind is one of `kinds`."""
    return np.isin(events["kind"], [CODES[kind] for kind in kinds])


def unknown() -> int:
    """Returns 0: the resident memory of the process on systems without /proc."""
    return 0


@contextmanager
def resident_bytes() -> Iterator[Callable[[], int]]:
    """Returns a context with a function that returns the resident memory of this process in a
    microsecond or two, or 0 except on Linux."""
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


class RankEntries(NamedTuple):
    """The records of a rank's first steps, without the last step if it is incomplete.

    events      a row for each operation, and for each wait within one, in the order of their ends
    works       a row for each collective or message in the background, in the order of their starts
    operations  what the kinds of works stand for: (name, algorithm, bytes)
    """

    events: np.ndarray
    works: np.ndarray
    operations: list[tuple[str, str, int]]

    @classmethod
    def of(cls, rows: np.ndarray, operations: list[tuple[str, str, int]]) -> "RankEntries":
        """Separates all records of a rank into operations with their waits, and Works."""
        is_work = rows["kind"] >= len(EVENT_KINDS)
        events, works = rows[~is_work], rows[is_work]
        ends = np.flatnonzero(~which(events, *WAITS))
        in_order = works[np.argsort(works["began"], kind="stable")]
        return cls(events[: 1 + ends.max(initial=-1)], in_order, operations)


class Works(list[Work]):
    """The list of a rank's unfinished Works, which records each one at its end, if it started
    within a step."""

    def __init__(self, recording: "Recording") -> None:
        self._recording, self._began = recording, dict[Work, tuple[int, float]]()

    def append(self, work: Work) -> None:
        super().append(work)
        if self._recording.step != EVALUATION:
            self._began[work] = self._recording.step, self._recording.now()

    def remove(self, work: Work) -> None:
        super().remove(work)
        if began := self._began.pop(work, None):
            self._recording.add_work(work.signature, *began)


class Recording(Recorder):
    """The Recorder of --trace, until it has CAPACITY entries. Works are added by the thread that
    completes them, under the lock of `Progress`."""

    def __init__(self, now: Callable[[], float] = time.perf_counter) -> None:
        self.now, self.step = now, EVALUATION
        self._memory, self._rows = unknown, bytearray()
        self._operations: dict[CallSignature, int] = {}
        self._under_way: tuple[str, float, int, int] | None = None  # the current operation

    @contextmanager
    def of_run(self, comm: Comm) -> Iterator[None]:
        """A context of a run that records background communication and memory."""
        with resident_bytes() as self._memory, comm.works_in(Works(self)):
            try:
                yield
            finally:
                self._memory, self.step = unknown, EVALUATION

    def begin(self, step: int) -> None:
        self.step, self._under_way = step, None

    def add(self, name: str, began: float, micro: int = -1, stage: int = -1) -> None:
        memory = self._memory() if name in COMPUTE else 0
        self._append(CODES[name], stage, micro, self.step, began, memory)

    def add_work(self, work: CallSignature, step: int, began: float) -> None:
        """Records a Work that ends now and began in step `step`."""
        number = self._operations.setdefault(work, len(self._operations))
        self._append(len(EVENT_KINDS) + number, -1, -1, step, began, 0)

    def _append(
        self, kind: int, stage: int, micro: int, step: int, began: float, memory: int
    ) -> None:
        if not self._is_full:
            self._rows.extend(PACKED.pack(kind, stage, micro, step, began, self.now(), memory))

    def recorded(self, name: str, do: Do) -> Do:
        def recorded(op: Op) -> None:
            outer, self._under_way = self._under_way, (name, self.now(), op.micro, op.stage)
            if outer is not None:  # a pass within which the list goes on: its event ends
                self.add(*outer)
            do(op)
            self.add(*self._under_way)
            if outer is not None:
                outer = outer[0], self.now(), *outer[2:]
            self._under_way = outer

        return recorded

    @contextmanager
    def evaluation(self) -> Iterator[None]:
        self.step = EVALUATION
        with Timed(self, "evaluate"):
            yield

    @property
    def operations(self) -> list[tuple[str, str, int]]:
        """(name, algorithm, bytes) of each kind of recorded Work."""
        return [(work.operation, work.algorithm, work.bytes) for work in self._operations]

    @property
    def limit(self) -> int:
        """The number of steps of which all operations were recorded, NO_LIMIT while there is room
        for more. Once it is full, the last one is not counted: its communication may be
        unfinished."""
        if not self._is_full:
            return NO_LIMIT
        rows = self.rows(NO_LIMIT)
        return int(rows["step"][which(rows, "APPLY")].max(initial=0))

    def rows(self, limit: int) -> np.ndarray:
        """Returns the records of the steps with numbers below `limit`."""
        rows = np.frombuffer(self._rows, ENTRY)
        return rows[rows["step"] < limit]

    @property
    def _is_full(self) -> bool:
        return len(self._rows) >= CAPACITY * ENTRY.itemsize
