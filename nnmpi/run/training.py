"""Training: attributes of a Trainer that loop and Supervisor use; functions that open sessions.

Config, TrainerArguments ─► prepare ─► Setup, RunState, Checkpoints ─► arrange ─► Session
                                                                          ▲
                                                                          └─ restore: on a snapshot
"""

import gc
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import replace
from itertools import chain
from threading import RLock
from typing import Any, NamedTuple, NoReturn, Protocol, TypeAlias, TypeVar, cast

from nnmpi.addons import Table
from nnmpi.comm import Comm
from nnmpi.data import Dataset
from nnmpi.io.checkpoints.snapshot import Snapshot
from nnmpi.io.output import Event, Report
from nnmpi.nn.graph import Graph
from nnmpi.options import user_code
from nnmpi.options.config import Config
from nnmpi.parallel.agreement import all_or_none, gather_objects
from nnmpi.parallel.checks import CHECKS
from nnmpi.parallel.mesh import Mesh
from nnmpi.parallel.recorder import NO_RECORDER, Recorder
from nnmpi.parallel.step.executor import StepResult
from nnmpi.run.callbacks import OCCASIONS, check_callbacks, load_states
from nnmpi.run.dropped_sessions import close_dropped
from nnmpi.run.run_state import RunPlan, RunState
from nnmpi.run.session import Session
from nnmpi.run.setup.setup import NOTHING_GIVEN, Setup, TrainerArguments, set_up

P = TypeVar("P")

StepHook: TypeAlias = Callable[[StepResult, float], None]
"""A function called after a step with its result and the mean loss per sample."""

GC_LOCK = RLock()
"""A lock around `gc.collect`: a second call at the same time would return at once."""


class Sampler(Protocol):
    """Generates text with the model in training, every `every` steps."""

    @property
    def every(self) -> int: ...

    def text(self, session: Session) -> str:
        """Generates a text with the model as it is now, and returns it; every rank calls it."""


class Tracer:
    """Records the steps of a run, and summarizes them at its end. This one does nothing."""

    recorder: Recorder = NO_RECORDER

    def of_run(self) -> AbstractContextManager[None]:
        """Returns a context within which all steps of a run are recorded."""
        return nullcontext()

    def outcome(self, mesh: Mesh) -> Event:
        """Returns a summary of the trace (its file, and how each rank has spent its time), as
        fields for the last event of the run's log; every rank calls it."""
        return {}


class Checkpoints:
    """Writes the checkpoints of a run. This class writes none; its subclasses do. Every rank calls
    the methods, between the same steps.

    newest   the step of the newest checkpoint that was written and reported, unless the run went
             back to an earlier step; -1: none
    """

    newest = -1

    @property
    def are_written(self) -> bool:
        """True if this run writes checkpoints: its config has a directory for them."""
        return False

    def begin(self, comm: Comm) -> None:
        """Prepares to write checkpoints of a run."""

    def after_step(self, session: Session, result: StepResult) -> None:
        """Starts a checkpoint if one is due, and reports the last if it is written."""

    def is_due(self) -> bool:
        """Returns True if this rank asks for a checkpoint after the evaluation of this epoch. Ranks
        then tell each other: `after_epoch` gets on all ranks whether some rank asks for one."""
        return False

    def after_epoch(self, session: Session, is_due: bool) -> None:
        """Called after the evaluation of an epoch: starts to write a checkpoint if `is_due` (some
        rank asks for one), or if the options ask for one after this epoch."""

    def suspend(self, session: Session) -> Event:
        """Writes a suspended run's last checkpoint; returns fields for its last event."""
        return {}

    def finish(self) -> Event:
        """Waits for the checkpoint under way; returns fields on all for the last event."""
        return {}

    def end(self, session: Session) -> None:
        """Writes the checkpoint of a completed run."""

    def go_back(self, step: int) -> None:
        """Forgets checkpoints of later steps, when the run goes back to `step`."""

    def close(self) -> None:
        """Stops writing after a run that ended alike on all ranks; waits."""

    def abandon(self) -> None:
        """Stops writing after an end on this rank alone, and removes unfinished files."""


class Supervisor:
    """Sets up a Trainer and runs its `fit`. This class is for a run in which all ranks train, and
    which simply ends if one is lost; a subclass may do both again after the loss of a rank.

    fitted    if the layout is not the requested one: which it is, and why; else empty
    """

    fitted = ""

    @property
    def is_spare(self) -> bool:
        """True on a rank that waits, because the layout has no place for it."""
        return False

    def set_up(self, trainer: "Training") -> None:
        """Makes data, model and counters, and the first session; every rank calls it."""
        config, comm = trainer.requested, trainer.comm
        prepare(trainer, config, comm, comm.size)
        trainer.tracer = tracer_of(config, comm)
        arrange(trainer, config, comm, None)
        load_callbacks(trainer, comm)

    def run(self, trainer: "Training", body: Callable[[list[Event]], Event]) -> Event:
        """Calls body(events), the training of `fit`, and may call it again after the loss of a
        rank. `body` reports the events, which are about such losses, and clears the list."""
        return body([])

    def is_start_reported(self, trainer: "Training") -> bool:
        """True if this run's start was reported before a rank was lost."""
        return False

    def opened_reports(self, trainer: "Training", is_new: bool) -> None:
        """Uses the run's reports, which are open now, for example to read what was reported before
        a rank was lost. `is_new` is True if this rank has only now begun to write them."""

    def called(self, trainer: "Training", occasion: str) -> None:
        """Records the settings that callbacks may have changed, if steps may have to be repeated
        with the same changes. All callbacks have been called on an `occasion` such as "on_step"."""

    def restoring(self, trainer: "Training", snapshot: Snapshot) -> AbstractContextManager[None]:
        """Returns a context in which the Trainer makes another session from `snapshot`, which it
        may keep, so that the run can continue from it if a rank is lost meanwhile."""
        return nullcontext()

    def opened(self, session: Session) -> None:
        """Prepares a new session, for example to keep copies of the training state; every rank
        calls it, before the session becomes an attribute of the Trainer."""

    def begin_steps(self, session: Session) -> None:
        """Copies the state of a session before the next steps of an epoch change it, if the run is
        to continue from it after the loss of a rank. Every rank calls it."""

    def around(self, trainer: "Training", hooks: list[StepHook]) -> list[StepHook]:
        """Returns the functions called after each step: `hooks`, and the Supervisor's."""
        return hooks


class Training(Protocol):
    """A Trainer on one rank, as the training loop and the Supervisor use it.

    given       the user's arguments, besides a config and a Comm
    began       the time at which it was made, by the clock of its Comm
    requested   the config that the user requested; after the loss of a rank, ranks may be arranged
                otherwise
    comm        the Comm of the ranks that work; on a spare rank, of all remaining ranks
    session     the session of these ranks; a NoSession after a failed restore, and on a spare rank
    hears       the occasions, such as "on_step", for which a callback of some rank has a method
    sampler     generates samples of text (--sample-every); None without the option
    graph       the graph of the model, once this rank has had a session
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
    hears: frozenset[str]
    sampler: Sampler | None
    checkpoints: Checkpoints
    tracer: Tracer
    graph: Graph | None


class NoModelError(AttributeError, ValueError):
    """Raised without a model: after a failed restore, or on a spare rank."""


class NoSession:
    """The `session` of a Trainer that has no model: after a failed restore, and on a spare rank,
    for which the layout has no place. Its attributes raise NoModelError."""

    is_closed = True

    def __init__(self, why: str) -> None:
        self._why = why

    def close(self) -> None:
        """Does nothing, since a NoSession has nothing to free."""

    end = close

    def __getattr__(self, name: str) -> NoReturn:
        raise NoModelError(f"this Trainer has no model {self._why}")


NO_SESSION = cast(Session, NoSession("because its last restore failed: restore a snapshot"))


class RunParts(NamedTuple):
    """An add-on's parts of a run with an option, made by functions.

    read_every  (config): the interval, in steps, at which it reads the model; 0 or None: never
    plan        (setup, config, comm): the RunPlan, a prediction of the run
    resume      (trainer, config, comm): True if it has opened the session of an earlier run
    at_end      (outputs, config, report, writes): registers in `outputs` what is written at the
                end, on the rank where `writes` is True
    instead     (config, comm): what a command does in place of the run; returns its exit status
    """

    callbacks: Callable[[Config], Sequence[object]] = lambda config: ()
    read_every: Callable[[Config], int | None] = lambda config: None
    sampler: Callable[[Comm, Config, Dataset], Sampler] | None = None
    tracer: Callable[[Config, Comm], Tracer] | None = None
    plan: Callable[[Setup, Config, Comm], RunPlan] | None = None
    checkpoints: Callable[[Training], Checkpoints] | None = None
    resume: Callable[[Training, Config, Comm], bool] | None = None
    at_end: Callable[[ExitStack, Config, Report, bool], None] | None = None
    instead: Callable[[Config, Comm], int] | None = None


RUN_PARTS: Table[RunParts] = Table("run_parts")
"""By an option: the parts of a run that it asks for."""


class Supervision(NamedTuple):
    """The functions by which a run goes on with other ranks than it asked for.

    supervisor   (comm): the Supervisor
    layout       (config, comm): the nearest layout for the ranks of the job
    begins_anew  (config): a note on a run that found nothing to continue from
    """

    supervisor: Callable[[Comm], Supervisor]
    layout: Callable[[Config, Comm], Any]
    begins_anew: Callable[[Config], str]


SUPERVISIONS: Table[Supervision] = Table("supervisions")
"""By an option: the Supervision of a run that asks for it, or may lose ranks."""


def part_of(config: Config, part: Callable[[RunParts], P | None]) -> P | None:
    """Returns a part of a run, such as what makes its Sampler, or None."""
    return next(filter(None, map(part, RUN_PARTS.given(config))), None)


def prepare(trainer: Training, config: Config, comm: Comm, ranks: int) -> None:
    """Makes data and all that does not depend on the arrangement. Every rank calls it."""
    for checks in CHECKS.given(config):
        checks.job(config, comm)
    trainer.setup = set_up(config, comm, trainer.given, ranks)
    config, given = trainer.setup.config, trainer.given.callbacks
    parts = [*RUN_PARTS.given(config)]
    trainer.callbacks = all_or_none(
        comm,
        lambda: [*check_callbacks(given), *chain.from_iterable(p.callbacks(config) for p in parts)],
    )
    hears = {name for c in trainer.callbacks for name in OCCASIONS if hasattr(c, name)}
    # on all ranks alike: where a callback follows a step, ranks agree on settings and stops
    trainer.hears = frozenset[str]().union(*gather_objects(comm, hears))
    sampler = part_of(config, lambda part: part.sampler)
    trainer.sampler = sampler(comm, config, trainer.setup.dataset) if sampler else None
    trainer.run, trainer.comm = RunState(trainer.setup), comm
    trainer.requested = replace(trainer.requested, model=config.model)
    trainer.run.read_every = (*_read_every(config, parts, "on_step" in trainer.hears),)
    trainer.run.reads_logged = "on_log" in trainer.hears
    trainer.run.runs_users_code = _runs_users_code(config, trainer)
    checkpoints = part_of(config, lambda part: part.checkpoints)
    trainer.checkpoints = checkpoints(trainer) if checkpoints else Checkpoints()
    close_dropped(comm)


def _runs_users_code(config: Config, trainer: Training) -> bool:
    """True if objects or functions of the user are part of the run: any may change the model."""
    is_given = trainer.given._replace(resume=None) != NOTHING_GIVEN
    is_named = any(isinstance(x, str) and user_code.is_named(x) for x in vars(config).values())
    return is_given or is_named or bool(trainer.hears or trainer.setup.user_functions)


def _read_every(config: Config, parts: Sequence[RunParts], hears_steps: bool) -> Iterator[int]:
    """Yields intervals, in steps, at which the host needs the model or the result of the last step:
    1 if `hears_steps`, and those of evaluations and add-ons."""
    if hears_steps:
        yield 1
    of_add_ons = (part.read_every(config) for part in parts)
    yield from filter(None, (config.evaluate_every, config.check_copies, *of_add_ons))


def tracer_of(config: Config, comm: Comm) -> Tracer:
    """Returns the object that records the steps of a run with --trace, or one that does nothing."""
    tracer = part_of(config, lambda part: part.tracer)
    return tracer(config, comm) if tracer else Tracer()


def supervisor_of(config: Config, comm: Comm) -> Supervisor:
    """Returns the Supervisor of a run: that of an add-on if ranks may be lost or spare."""
    row = next(SUPERVISIONS.rows() if comm.fault_tolerant else SUPERVISIONS.given(config), None)
    return row.supervisor(comm) if row else Supervisor()


# ---- sessions


def arrange(trainer: Training, config: Config, comm: Comm, snapshot: Snapshot | None) -> None:
    """Opens a session on the ranks of `comm`, from `snapshot`, or, if that is None, the first of
    the run, which may continue from a checkpoint. Every rank of the Comm calls it."""
    if snapshot is None:
        resume = part_of(config, lambda part: part.resume)
        if resume and resume(trainer, config, comm):
            return
    open_session(trainer, config, comm, snapshot)


def load_callbacks(trainer: Training, comm: Comm) -> None:
    """Gives callbacks their states in the checkpoint, if any. Every rank calls it."""
    if (resumed := trainer.run.resumed) is not None:
        all_or_none(comm, lambda: load_states(trainer.callbacks, resumed.callbacks))


def open_session(trainer: Training, config: Config, comm: Comm, snapshot: Snapshot | None) -> None:
    """Opens a session as the config says, from a snapshot if given; every rank calls it."""
    trainer.comm, config = comm, replace(config, model=trainer.setup.config.model)
    if planned := part_of(config, lambda part: part.plan):
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
    """Replaces the session of a Trainer by `instead`, and frees the memory of the old one."""
    trainer.session = instead
    with GC_LOCK:
        gc.collect()  # a parameter and its store refer to each other
