"""Callbacks that do something once: after a step a rank is killed, or a checkpoint is written."""

import os
from collections.abc import Callable

from nnmpi import Trainer
from nnmpi.comm import Comm
from nnmpi.comm import thread_ranks as threads
from nnmpi.comm.transport.threads import ThreadTransport
from nnmpi.io.checkpoints.snapshot import Snapshot
from nnmpi.io.output import Event


class KillsAt:
    """This rank of the job, a thread, is killed after that step, or so many operations later."""

    def __init__(self, rank: int, step: int, later: int = 0) -> None:
        self._rank, self._step, self._later = rank, step, later

    def on_step(self, trainer: Trainer, event: Event) -> None:
        if event["step"] >= self._step:
            kill_soon(trainer.comm, self._rank, self._later)


def kill_soon(comm: Comm, rank: int, operations: int) -> None:
    """If it is this rank of the job, a thread, it is killed after so many operations from now."""
    assert isinstance(comm._p2p, ThreadTransport)
    if rank_of(comm) != rank:
        return
    if not operations:
        threads.kill(comm)
    comm._p2p._hub._remaining.setdefault(rank, operations)


class GoesBack:
    """After a step the run goes back to an earlier one, once. `first` is called before it does, and
    `then` after each step from then on. Ranks, which are threads, may share it.

    steps   those that each rank has heard of
    """

    def __init__(
        self,
        to: int,
        after: int,
        first: Callable[[Trainer], object] = lambda trainer: None,
        then: Callable[[Trainer, Event], object] = lambda trainer, event: None,
    ) -> None:
        self._to, self._after, self._first, self._then = to, after, first, then
        self._snapshots: dict[int, Snapshot | None] = {}
        self.steps: dict[int, list[int]] = {}

    def on_step(self, trainer: Trainer, event: Event) -> None:
        rank, step = rank_of(trainer.comm), event["step"]
        self.steps.setdefault(rank, []).append(step)
        if step == self._to:
            self._snapshots.setdefault(rank, trainer.snapshot())
        if step == self._after and (snapshot := self._snapshots.get(rank)) is not None:
            self._snapshots[rank] = None
            self._first(trainer)
            trainer.restore(snapshot)
        elif self.is_back(rank):
            self._then(trainer, event)

    def is_back(self, rank: int) -> bool:
        """Whether a rank has called `restore`."""
        return self._snapshots.get(rank, True) is None


def rank_of(comm: Comm) -> int:
    """The number of this rank in the job, whoever was lost."""
    return comm.members[comm.rank]


class SavesAt:
    """Writes a checkpoint after a step, and ends the run if it is told to; where ranks do not make
    steps together it has to be the last one of an epoch."""

    def __init__(self, step: int, directory: str | os.PathLike[str], ends: bool = False) -> None:
        self._step, self._directory, self._ends = step, directory, ends

    def on_step(self, trainer: Trainer, event: Event) -> None:
        if trainer.arrangement.steps_together:
            self._act(trainer, event["step"])

    def on_epoch(self, trainer: Trainer, event: Event) -> None:
        if not trainer.arrangement.steps_together:
            self._act(trainer, event["steps"])

    def _act(self, trainer: Trainer, step: int) -> None:
        if step == self._step:
            trainer.save_checkpoint(self._directory)
            if self._ends:
                trainer.stop()
