"""Footprint: what a rank sends in a step, and how its process has grown: beside what was predicted.

Counted is the first step over a whole batch that follows another one in its epoch, from the end of
that one to its own end.
"""

from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path

from nnmpi.comm import Comm
from nnmpi.parallel.arrangement.sent import Sent
from nnmpi.parallel.arrangement.traffic import TRAFFIC, Traffic
from nnmpi.parallel.layout import Layout
from nnmpi.parallel.step.executor import StepResult
from nnmpi.run.report import Event
from nnmpi.run.session import Session

PROCESS = Path("/proc/self")


class Footprint:
    """That of one rank, from before its model is made."""

    def __init__(self) -> None:
        self.sent: Traffic | None = None
        self._before: Traffic = {}
        self._epoch: int | None = None  # of the last step
        with suppress(OSError):
            (PROCESS / "clear_refs").write_text("5")  # the peak is what is resident now
        self._resident = memory("VmRSS")

    def step(self, session: Session, result: StepResult) -> None:
        """A step has ended. The state behind the last one of an epoch is that of the next epoch."""
        if self.sent is not None:
            return
        layout, state = session.strategy.layout, result.state
        now, epoch = sent_along(layout, layout.all.comms_of_rank), state.epoch - (state.batch == 0)
        if epoch == self._epoch and result.samples == session.config.batch_size:
            self.sent = less(now, self._before)
        self._before, self._epoch = now, epoch

    def event(self) -> Event:
        """What the last event says of it, where it is known."""
        sent = {axis: one._asdict() for axis, one in (self.sent or {}).items()}
        grown = max(memory("VmHWM") - self._resident, 0)  # Linux counts in batches
        known = {"memory_bytes": grown} if self._resident else {}
        return {**({"sent": sent} if sent else {}), **known}


def sent_along(layout: Layout, comms: Iterable[Comm]) -> Traffic:
    """What these Comms of a rank have sent so far, by the axis of the one that they are made of."""
    along = {**layout.axis, "dp": layout.replicas, "model": layout.model}
    names = {axis: comm.name for axis, comm in along.items() if comm.size > 1}
    found = dict.fromkeys(TRAFFIC, Sent())
    for comm in dict.fromkeys(comms):
        whose = (axis for axis, name in names.items() if f"{comm.name}/".startswith(f"{name}/"))
        axis = next(whose, "dp" if comm.name.startswith(f"{layout.all.name}/") else None)
        if axis is not None and comm.size > 1:
            found[axis] += Sent(sum(comm.ledger.sent_bytes), sum(comm.ledger.sent_messages))
    return found


def less(after: Traffic, before: Mapping[str, Sent]) -> Traffic:
    """What was sent between."""
    return {
        axis: Sent(now.bytes - before[axis].bytes, now.messages - before[axis].messages)
        for axis, now in after.items()
    }


def memory(name: str) -> int:
    """Resident bytes of this process, now (VmRSS) or at most (VmHWM); 0 where Linux is not."""
    with suppress(OSError):
        for line in (PROCESS / "status").read_text().splitlines():
            key, _, value = line.partition(":")
            if key == name:
                return int(value.split()[0]) * 1024
    return 0
