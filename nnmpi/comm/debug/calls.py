"""The calls of one communicator: noted, compared where that is asked for, and carried out."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from nnmpi.comm.allreduce.interpreter import Steps
from nnmpi.comm.debug.call_log import Call, site
from nnmpi.comm.debug.compare import Check
from nnmpi.comm.progress.work import Progress, Work
from nnmpi.comm.transport.base import Transport


class Calls:
    """Collectives of the ranks of one transport, as this rank calls them."""

    def __init__(self, name: str, wire: Transport, progress: Progress) -> None:
        self.name, self.wire, self.progress = name, wire, progress
        guard = progress.guard
        self._guard, self._group = guard, guard.group(name, wire.members)
        self.check = Check(wire, progress) if guard.settings.check else None

    def note(
        self,
        operation: str,
        algorithm: str = "",
        count: int = 0,
        dtype: Any = None,
        root: int = -1,
        check: bool = True,
    ) -> Call:
        """Notes a collective, before anything of it is done."""
        group = self._group
        group.number += 1
        call = Call(self.name, group.number, operation, algorithm, dtype, count, root, *site())
        self._guard.calls.append(call)
        if check and self.check is not None:
            self.check.compare(call)
        return call

    def checked(self, steps: Steps, call: Call, compared: bool) -> Steps:
        """Where a call may not hold this rank up, the check is its first steps."""
        return steps if compared or self.check is None else self.check.before(steps, call)

    def finish(self, steps: Steps, call: Call) -> None:
        """Does a whole operation."""
        self.progress.finish(steps, call, self.wire)

    def work(self, steps: Steps, call: Call) -> Work:
        """Begins one."""
        return Work(steps, self.wire, self.progress, call)

    def meet(self, call: Call) -> None:
        """Until all ranks have come."""
        self.finish(iter([[self.wire.ibarrier()]]), call)

    @contextmanager
    def together(self, call: Call) -> Iterator[None]:
        """Around what all ranks do at the same time: MPI may let them block in it."""
        self.meet(call)
        with self._guard.during(call):
            yield

    def free(self) -> None:
        """Gives the transport back; every rank of it calls it."""
        if self.check is not None:
            self.check.free()
        self.wire.free()
