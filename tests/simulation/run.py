"""A run under a case, and what is left of it."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any, NamedTuple

import pytest
from helpers.training.recovered import Left, trained

from nnmpi import Trainer
from nnmpi.arrays import blas, cgroup
from nnmpi.arrays.kernels import progress_hook
from nnmpi.comm import Comm
from nnmpi.comm import thread_ranks as threads
from nnmpi.comm.progress import Progress
from simulation.case import Case
from simulation.layouts import LAYOUTS
from simulation.marks import marked
from simulation.scheduler import HERE, SimulatedScheduler


class Noted(Trainer):
    """A Trainer that SIGTERM to its rank suspends."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        here = HERE.get()
        assert here is not None
        super().__init__(*arguments, **options)
        here.scheduler.asked[here.rank] = self

    def steps_made(self) -> int | None:
        """The number of steps that this rank has made, if it trains."""
        return self.run.state.step if self.run.is_running and not self.is_spare else None


@contextmanager
def helper_polls(progress: Progress, pause: float) -> Iterator[None]:
    """Stands for the helper thread of a rank: it polls while the rank computes, or does not, as is
    decided. A thread would wait for locks and events, where no scheduler can end its turn."""
    here = HERE.get()
    assert here is not None

    def poll() -> None:
        if here.scheduler.decisions.draw(2):
            progress.poll(keep_error=True)

    token = progress_hook.set(poll)
    try:
        yield
    finally:
        progress_hook.reset(token)
    progress.raise_error()


@contextmanager
def simulated() -> Iterator[None]:
    """Replaces what a rank does outside of its Comms by what a case decides."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("helpers.training.recovered.Trainer", Noted)
        patch.setattr(Progress, "thread", helper_polls)
        marked(patch)
        patch.setattr(cgroup, "_read", cache(cgroup._read))  # each Trainer reads a dozen files
        patch.setattr(blas, "release_memory", lambda: None)
        patch.setattr(gc, "collect", lambda *_: 0)
        gc.disable()  # finalizers run at the same moments in each run
        try:
            yield
        finally:
            gc.enable()


class Ended(NamedTuple):
    """The end of a run: what ranks have of it, in rank order, None for those that are lost; or the
    error that has ended all."""

    left: list[Left | None]
    error: BaseException | None
    scheduler: SimulatedScheduler


def run(case: Case, **options: Any) -> Ended:
    """A run of the layout of a case, with these options besides."""
    layout = LAYOUTS[case.layout]
    scheduler = SimulatedScheduler(case, layout.ranks)

    def of_rank(comm: Comm) -> Left:
        callbacks = [make() for make in layout.given.get("callbacks", ())]
        return trained(comm, {**layout.options, **options, "callbacks": callbacks})

    with simulated():
        try:
            left = threads.run(
                layout.ranks,
                of_rank,
                per_node=layout.per_node,
                fault_tolerant=True,
                scheduler=scheduler,
            )
        except Exception as error:
            return Ended([], error, scheduler)
        finally:
            scheduler.asked.clear()  # else Comms, which know the scheduler, keep Trainers alive
    return Ended(left, None, scheduler)
