"""Callbacks that do something once: after a step a rank is killed, or a checkpoint is written."""

import os

from nnmpi import Trainer
from nnmpi.comm import Comm
from nnmpi.comm import thread_ranks as threads
from nnmpi.comm.transport.threads import ThreadTransport
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
    if comm.members[comm.rank] != rank:
        return
    if not operations:
        threads.kill(comm)
    comm._p2p._hub._remaining.setdefault(rank, operations)


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
