"""What a rank tells of itself when something is stuck, and what is made of it for people."""

import json
import os
import sys
import traceback
from collections.abc import Mapping, Sequence
from typing import NamedTuple, Self

from nnmpi.comm.debug.call_log import Call, named
from nnmpi.comm.progress.work import Progress

FRAMES = 8  # of a stack, the innermost


class Record(NamedTuple):
    """One rank, as others need to know it."""

    numbers: dict[str, int]  # collectives called so far, by communicator
    calls: list[Call]  # the last of them
    unfinished: list[Call]  # started, and not complete
    waits: Call | None
    seconds: float  # for which it has waited
    stack: str
    left: bool = False  # it has come to its end

    @classmethod
    def of(cls, progress: Progress, thread: int, left: bool = False) -> Self:
        """Of the rank whose work is done by that thread; asked from another thread."""
        guard = progress.guard
        waiting = None if left else progress.waiting()
        return cls(
            {name: group.number for name, group in guard.groups.copy().items()},
            guard.last(),
            [work.call for work in tuple(progress.works)],
            waiting[0] if waiting else None,
            waiting[1] if waiting else 0.0,
            "" if left else stack(thread),
            left,
        )

    def encoded(self) -> bytes:
        return json.dumps(self._asdict(), default=str).encode()  # dtypes by name

    @classmethod
    def decoded(cls, text: bytes) -> Self:
        values = json.loads(text)
        for name in ("calls", "unfinished"):
            values[name] = [Call(*call) for call in values[name]]
        values["waits"] = values["waits"] and Call(*values["waits"])
        return cls(**values)

    def joins(self, call: Call) -> bool:
        """Whether this rank has called it, and may still do its part; not known of a message."""
        if call.number < 0:
            return False
        same = any((c.comm, c.number) == (call.comm, call.number) for c in self.unfinished)
        return self.numbers.get(call.comm, 0) >= call.number and not (self.left and same)


def stack(thread: int) -> str:
    """Where a thread is, without the frames of this package."""
    frame = sys._current_frames().get(thread)
    here = os.path.dirname(os.path.dirname(__file__))
    frames = [f for f in traceback.extract_stack(frame) if not f.filename.startswith(here)]
    return "".join(traceback.format_list(frames[-FRAMES:])) if frame else ""


def report(
    records: Mapping[int, Record | None], first: int, call: Call, members: Sequence[int]
) -> str:
    """Why rank `first` still waits in a call of the ranks `members`; None does not answer."""
    mine = records[first]
    seconds = mine.seconds if mine else 0.0
    lines = [
        f"rank {first} has waited for {seconds:.1f} s, longer than NNMPI_TIMEOUT, in {call}",
        *(
            f"missing: {_absent(r, records[r], call)}"
            for r in members
            if r in records and not _present(records[r], call)
        ),
    ]
    groups: dict[str, list[int]] = {}
    for r, record in sorted(records.items()):
        if record is not None:
            groups.setdefault(_told(record), []).append(r)
    for text, ranks in groups.items():
        lines += [f"{named(ranks)}: {text}"]
    return "\n".join(lines)


def _present(record: Record | None, call: Call) -> bool:
    return record is not None and record.joins(call)


def _absent(rank: int, record: Record | None, call: Call) -> str:
    if record is None:
        return (
            f"rank {rank} does not answer: it is stopped or gone, "
            "or in a long call that keeps Python to itself"
        )
    does = "computes or sleeps" if record.waits is None else f"waits in {record.waits}"
    does = f"rank {rank} {'has left' if record.left else does}"
    if call.number < 0:
        return does
    made = record.numbers.get(call.comm, 0)
    return f"{does}, and has made {made} of {call.number} calls of {call.comm}"


def _told(record: Record) -> str:
    """A record as text; many ranks may have the same."""
    if record.left:
        lines = ["has left"]
    else:
        lines = [f"waits in {record.waits}" if record.waits else "waits for nobody"]
    started = [c for c in record.unfinished if c != record.waits]
    if started:
        lines += ["  started, not complete:", *(f"    {c}" for c in started)]
    if record.calls:
        lines += ["  last calls:", *(f"    {c}" for c in record.calls)]
    if record.stack:
        lines += ["  stack:", *(f"  {line}" for line in record.stack.rstrip().splitlines())]
    return "\n".join(lines)
