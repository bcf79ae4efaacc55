"""Survivors: the remaining ranks of a job, of which some train, and spare ranks wait."""

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import cast

import numpy as np

from nnmpi.addons.recovery.run.versions import RangeTransfer
from nnmpi.comm import Comm, RankLost
from nnmpi.io.output import Event
from nnmpi.nn.place import StateArray
from nnmpi.parallel.agreement import all_or_none, gather_objects, receive_object, send_object
from nnmpi.parallel.strategy import AgreedError

POLL_SECONDS = 0.02  # seconds between two looks of a spare rank


class Survivors:
    """The remaining ranks of a job, divided into those that train (work) and spare ranks that wait.

    all      the Comm of all remaining ranks, until the next rank is lost
    work     the Comm of the ranks that work; None on a spare rank
    spare    the number of spare ranks, which are the last ones
    """

    def __init__(self, comm: Comm) -> None:
        self.all: Comm = comm
        self.work: Comm | None = comm
        self.spare = 0

    def shrink(self) -> None:
        """Replaces the Comm `all` by one without the ranks that were lost."""
        while True:
            with suppress(RankLost):  # another rank was lost meanwhile: shrink again
                self.all = self.all.shrink()
                return

    def divide(self, ranks: int) -> None:
        """Makes the first `ranks` of the remaining ranks work, and the others spare."""
        self.spare = self.all.size - ranks
        self.work = self.all
        if self.spare:
            self.work = self.all.split(0 if self.all.rank < ranks else None)

    def arrange(self, f: Callable[[Comm], object]) -> None:
        """Calls f on the ranks that work; if it raises an error on one rank, all ranks raise one,
        also spare ones."""
        work = self.work
        if self.spare or self.all.fault_tolerant:
            all_or_none(self.all, lambda: None if work is None else f(work))
        else:
            f(self.all)

    def exchange(
        self, transfers: Iterable[RangeTransfer], owned: Sequence[StateArray]
    ) -> list[StateArray]:
        """Carries out transfers from spare ranks to ranks that train; every rank calls it with the
        same `transfers`. Returns the arrays that this rank receives."""
        received = list[StateArray]()
        for transfer in transfers:
            if transfer.source == self.all.rank:
                given = [x for x in owned if x.range in transfer.ranges]
                send_object(self.all, given, transfer.to)
            elif transfer.to == self.all.rank:
                received += receive_object(self.all, transfer.source)
        return received

    # ---- the end of a run

    def end(self, f: Callable[[], Event]) -> Event:
        """Calls f on the ranks that work, and returns its result on all ranks. If f raises an
        AgreedError, all ranks raise one; if a rank is lost, all raise RankLost. So no rank has
        ended the run while another has to repeat a part of it."""
        result, error = cast(Event | None, None), cast(AgreedError | None, None)
        if self.work is None:
            self.wait()
        else:
            try:
                result = f()
            except AgreedError as caught:
                error = caught
        if self.spare:
            self.wake()
            result, problem = gather_objects(self.all, (result, error and str(error)))[0]
            if problem and error is None:
                error = AgreedError(problem)
        if self.all.fault_tolerant:
            self.all.confirm()
        if error is not None:
            raise error
        assert result is not None
        return result

    def wait(self) -> None:
        """Waits, on a spare rank, until the others have ended their run, or all have failed."""
        over = self.all.irecv(np.zeros(1), 0)
        # not `over.poll()`: the watchdog counts it as a wait, which may outlast NNMPI_TIMEOUT
        while not over.done:
            self.all.poll()
            self.all.system.sleep(POLL_SECONDS)

    def wake(self) -> None:
        """Ends the wait of spare ranks, by messages from rank 0."""
        if self.all.rank == 0:
            waiting = range(self.all.size - self.spare, self.all.size)
            works = [self.all.isend(np.zeros(1), rank) for rank in waiting]
            for work in works:
                work.wait()
