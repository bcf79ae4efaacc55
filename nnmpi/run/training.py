"""Training: the attributes of a Trainer that its loop and its Supervisor use; functions that open
sessions.

Config, TrainerArguments ─► prepare ─► Setup, RunState, Checkpoints ─► arrange ─► Session
                                                                          ▲
                                                                          └─ restore: on a snapshot
"""

import gc
import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from functools import partial
from itertools import chain
from threading import RLock
from typing import NoReturn, Protocol, TypeAlias, cast

from nnmpi import addons
from nnmpi.comm import Comm
from nnmpi.io.checkpoints.read import StoredCheckpoint
from nnmpi.io.checkpoints.snapshot import Snapshot
from nnmpi.io.checkpoints.times import SaveTimes
from nnmpi.io.output import Event
from nnmpi.nn.graph import Graph
from nnmpi.options.config import Config
from nnmpi.parallel.agreement import all_or_none, gather_objects
from nnmpi.parallel.mesh import Mesh
from nnmpi.parallel.recorder import NO_RECORDER, Recorder
from nnmpi.parallel.step.executor import StepResult
from nnmpi.run.callbacks import check_callbacks, load_states
from nnmpi.run.checkpointing import Checkpoints
from nnmpi.run.dropped_sessions import close_dropped
from nnmpi.run.resume import ResumePoint, facts_of, resume_point, try_resume
from nnmpi.run.run_state import RunState
from nnmpi.run.session import Session
from nnmpi.run.setup.setup import Setup, TrainerArguments, set_up

StepHook: TypeAlias = Callable[[StepResult, float], None]
"""A function that follows a completed step; its second argument is the mean loss of a sample."""

GC_LOCK = RLock()
"""Held by the rank that calls `gc.collect`, because ranks may be threads: a second one that calls
it meanwhile would return at once without having collected anything."""


class Sampler(Protocol):
    """Writes text with a model in training, every so many steps."""

    every: int

    def text(self, session: Session) -> str:
        """A text that the model writes now; every rank calls it."""


class Tracer(Protocol):
    """Records a run, and summarizes at its end what was recorded."""

    recorder: Recorder

    def of_run(self) -> AbstractContextManager[None]:
        """A context for all steps of a run."""

    def outcome(self, mesh: Mesh) -> Event:
        """Fields of the last event; every rank calls it."""


class Untraced:
    """The Tracer of a run without --trace."""

    recorder = NO_RECORDER

    def of_run(self) -> AbstractContextManager[None]:
        """A context that does nothing."""
        return nullcontext()

    def outcome(self, mesh: Mesh) -> Event:
        """No fields."""
        return {}


class Supervisor(Protocol):
    """Sets up a Trainer and runs its `fit`; after a loss of ranks it may do so again.

    is_spare  True on a rank that waits, because the layout has no place for it
    fitted    the layout for the ranks of the job, and why; empty if it is the requested one
    """

    @property
    def is_spare(self) -> bool: ...

    @property
    def fitted(self) -> str: ...

    def set_up(self, trainer: "Training") -> None:
        """Prepares the run and opens its first session; every rank calls it."""

    def run(self, trainer: "Training", body: Callable[[list[Event]], Event]) -> Event:
        """Returns what the body of `fit` returns, perhaps after several calls, each of which goes
        on from where the run is; the body reports the given events, on losses, and clears them."""

    def is_start_reported(self, trainer: "Training") -> bool:
        """True if the start of this run was reported before a loss."""

    def opened_reports(self, trainer: "Training", is_new: bool) -> None:
        """Takes note of reports that are open; `is_new` if this rank has begun to write them."""

    def called(self, trainer: "Training", occasion: str) -> None:
        """Takes note of a call of the callbacks, which may have changed settings."""

    def restoring(self, trainer: "Training", snapshot: Snapshot) -> AbstractContextManager[None]:
        """A context in which a session ends, and another one is made from a snapshot."""

    def opened(self, session: Session) -> None:
        """Takes note of a session before the Trainer has it; every rank calls it."""

    def begin_steps(self, session: Session) -> None:
        """Prepares for the next steps of an epoch in a session; every rank calls it."""

    def around(self, trainer: "Training", hooks: list[StepHook]) -> list[StepHook]:
        """The functions that follow each step, with those of the Supervisor."""


class Unsupervised:
    """The Supervisor of a run that ends when a rank is lost, and in which all ranks work."""

    is_spare, fitted = False, ""

    def set_up(self, trainer: "Training") -> None:
        """Prepares the run and opens its first session."""
        config, comm = trainer.requested, trainer.comm
        prepare(trainer, config, comm, comm.size)
        trainer.tracer = tracer_of(config, comm)
        arrange(trainer, config, comm, None)
        load_callbacks(trainer, comm)

    def run(self, trainer: "Training", body: Callable[[list[Event]], Event]) -> Event:
        """Returns what the body of `fit` returns."""
        return body([])

    def is_start_reported(self, trainer: "Training") -> bool:
        """False: a run begins once."""
        return False

    def opened_reports(self, trainer: "Training", is_new: bool) -> None:
        """Does nothing."""

    def called(self, trainer: "Training", occasion: str) -> None:
        """Does nothing."""

    def restoring(self, trainer: "Training", snapshot: Snapshot) -> AbstractContextManager[None]:
        """A context that does nothing."""
        return nullcontext()

    def opened(self, session: Session) -> None:
        """Does nothing."""

    def begin_steps(self, session: Session) -> None:
        """Does nothing."""

    def around(self, trainer: "Training", hooks: list[StepHook]) -> list[StepHook]:
        """The functions that follow each step, alone."""
        return hooks


class Training(Protocol):
    """A Trainer on one rank, as the loop and the Supervisor of its run see it.

    given       the arguments of users, besides a config and a Comm
    began       when it was made, by the clock of its Comm
    requested   the config that was requested, before any rank was lost
    config      the config that ranks are arranged by
    comm        of the ranks that work, or of all remaining ranks on a spare rank
    setup       data, model and loss, which no arrangement changes
    run         how far the run is
    session     of these ranks; after a restore that failed, and on a spare rank, a NoSession
    supervisor  sets it up, and runs `fit`
    hears_steps True if a callback of some rank has on_step
    sampler     of --sample-every
    graph       of the model, once this rank has had a session
    """

    given: TrainerArguments
    began: float
    requested: Config
    config: Config
    comm: Comm
    setup: Setup
    run: RunState
    session: Session
    supervisor: Supervisor
    callbacks: list[object]
    hears_steps: bool
    sampler: Sampler | None
    checkpoints: Checkpoints
    tracer: Tracer
    graph: Graph | None


class NoModelError(AttributeError, ValueError):
    """This Trainer has no model: it lacks attributes, and its methods refuse to do anything."""


class NoSession:
    """A stand-in for the session, after a restore that failed and on a spare rank."""

    is_closed = True

    def __init__(self, why: str) -> None:
        self._why = why

    def close(self) -> None:
        """Does nothing: a NoSession holds nothing to free."""

    end = close

    def __getattr__(self, name: str) -> NoReturn:
        raise NoModelError(f"this Trainer has no model {self._why}")


NO_SESSION = cast(Session, NoSession("because its last restore failed: restore a snapshot"))


def prepare(trainer: Training, config: Config, comm: Comm, ranks: int) -> None:
    """Loads the data and makes everything that does not depend on the arrangement of ranks; every
    rank calls it."""
    trainer.setup = set_up(config, comm, trainer.given, ranks)
    config, given = trainer.setup.config, trainer.given.callbacks
    makers = addons.given("callbacks", config)
    trainer.callbacks = all_or_none(
        comm, lambda: [*check_callbacks(given), *chain.from_iterable(f(config) for f in makers)]
    )
    hears_steps = any(hasattr(callback, "on_step") for callback in trainer.callbacks)
    # on all ranks alike: where a callback follows a step, ranks compare settings
    trainer.hears_steps = any(gather_objects(comm, hears_steps))
    sampler = addons.chosen("samplers", config)
    trainer.sampler = sampler and sampler(comm, config, trainer.setup.dataset)
    trainer.run, trainer.comm = RunState(trainer.setup), comm
    trainer.requested = replace(trainer.requested, model=config.model)
    times = SaveTimes(config, trainer.began, comm.system.clock)
    trainer.run.read_every = (*_read_every(config, trainer.hears_steps, times),)
    trainer.checkpoints = Checkpoints(
        config, trainer.run, times, partial(facts_of, trainer.setup), trainer.callbacks
    )
    close_dropped(comm)


def _read_every(config: Config, hears_steps: bool, times: SaveTimes) -> Iterator[int]:
    """Intervals in steps at which something reads the model, or the result of the last step."""
    if hears_steps:
        yield 1
    of_add_ons = (every(config) for every in addons.given("read_every", config))
    yield from filter(None, (config.evaluate_every, config.check_copies, times.steps, *of_add_ons))


def tracer_of(config: Config, comm: Comm) -> Tracer:
    """The Tracer of a run."""
    traced = addons.chosen("tracers", config)
    return traced(config, comm) if traced else Untraced()


def supervisor_of(config: Config, comm: Comm) -> Supervisor:
    """The Supervisor of a run: another one where ranks may be lost, or wait."""
    of_losses = comm.fault_tolerant
    supervisors = addons.rows("supervisors") if of_losses else addons.given("supervisors", config)
    supervise = next(supervisors, None)
    return supervise(comm) if supervise else Unsupervised()


# ---- sessions


def arrange(trainer: Training, config: Config, comm: Comm, snapshot: Snapshot | None) -> None:
    """Opens a session of these ranks, on a snapshot; without one it opens the first session of the
    run, on a checkpoint if the run goes on from one. Every rank of the Comm calls it."""
    if snapshot is None:
        given = trainer.given.resume
        directory = config.checkpoint_dir if given is None else os.fspath(given)

        def resume(checkpoint: StoredCheckpoint) -> None:
            trainer.run.resume(open_on(trainer, config, comm, checkpoint))

        if try_resume(config, directory, comm, resume):
            return
    _open(trainer, config, comm, snapshot)


def load_callbacks(trainer: Training, comm: Comm) -> None:
    """Restores the states of callbacks if the run goes on from a checkpoint; every rank calls
    it."""
    if (resumed := trainer.run.resumed) is not None:
        all_or_none(comm, lambda: load_states(trainer.callbacks, resumed.callbacks))


def open_on(
    trainer: Training, config: Config, comm: Comm, checkpoint: StoredCheckpoint
) -> ResumePoint:
    """Opens a session on a checkpoint, and returns the state read from it."""
    resumed = all_or_none(comm, lambda: resume_point(checkpoint, trainer.setup))
    _open(trainer, config, comm, resumed.snapshot)
    return resumed


def _open(trainer: Training, config: Config, comm: Comm, snapshot: Snapshot | None) -> None:
    """Opens a session with ranks arranged as the config says; each of them calls it."""
    trainer.comm, config = comm, replace(config, model=trainer.setup.config.model)
    for planned in addons.given("plans", config):
        trainer.run.plan = plan = planned(trainer.setup, config, comm)
        config = replace(config, **plan.options)
        trainer.requested = replace(trainer.requested, **plan.options)
    session = Session(
        trainer.setup, config, comm, trainer.run, trainer.tracer.recorder, snapshot, trainer.graph
    )
    trainer.supervisor.opened(session)
    trainer.session = session
    trainer.config = config  # not earlier: if Session fails, `rearrange` needs the old config
    trainer.graph = session.arrangement.graph


def replace_session(trainer: Training, instead: Session = NO_SESSION) -> None:
    """Replaces the session of a Trainer, and frees the memory of the old one."""
    trainer.session = instead
    with GC_LOCK:
        gc.collect()  # a parameter and its store refer to each other
