"""RunState: how far a run is, its learning rate schedule, and requests to stop, suspend or save it.

It has no reference to the Trainer, the session or the data. The object that makes steps has a
reference to it, and may live on until garbage is collected.
"""

import math
from collections.abc import Callable, Mapping
from enum import Enum, auto
from typing import Any, NamedTuple

from nnmpi.io.checkpoints.snapshot import Changes, Snapshot
from nnmpi.io.files.loading import Loaded
from nnmpi.io.output import Event, NullReport, Report
from nnmpi.io.output.pace import NO_TIME, Pace, counts_tokens
from nnmpi.metrics import Sums, mean
from nnmpi.optim.schedule import LRSchedule
from nnmpi.parallel.arrangement.flat_buffer import SAVES, STOPS
from nnmpi.parallel.step.executor import StepResult, StepState
from nnmpi.parallel.strategy import StepControl
from nnmpi.run.reported_events import ReportedEvents
from nnmpi.run.resume_point import ResumePoint
from nnmpi.run.setup.setup import Setup

STEP_EVENTS = 200
"""The approximate number of step events in a run, unless --log-every gives their interval."""


class StepPhase(Enum):
    """The phase of a step; an error while UPDATING may leave the parameters partly updated."""

    BETWEEN_STEPS = auto()
    COMPUTING = auto()
    UPDATING = auto()


class RunPlan(NamedTuple):
    """The layout that --plan has chosen for a run.

    started  fields about the plan, for the start event
    outcome  (measured seconds of a step, or None): fields that compare them with the prediction,
             for the last event
    """

    options: Mapping[str, Any]
    started: Event
    outcome: Callable[[float | None], Event]


class RunState:
    """The counters of a run, and the requests and reports of this rank.

    step_range  the first step and the end of a run by fit(epochs=N); None: those of the options
    skipped     the number of steps without an update, because a value was not finite
    sums        sums of losses over the steps of the epoch so far
    first_step  the step at which `fit` began
    first_loss  the loss of the first step that this rank has made since `fit` began; inf: none
    fit_calls   the number of calls of `fit`
    restored    the steps to which `restore` has taken the run, in order
    stop_at     the step after which all ranks have agreed to stop; None: they have not
    metrics     fields for the last event: those of the last epoch that was evaluated, or how
                the run was suspended
    measured    losses and metrics of the evaluation after the last step, if there was one
    changed     settings that callbacks have changed, by step and occasion
    unfollowed  the result of the last step while the functions that follow it run, if ranks may
                be lost; else None
    in_epoch    True while the steps of an epoch are made
    reached     the newest step before a rank was lost, which may take the run back; 0: none was, or
                a `restore` has undone it
    loaded      the content of the file of --load
    plan        the layout that --plan has found, if one fits
    read_every  intervals, in steps, at which the model or the result of a step is read
    reads_logged  True if the results of the steps that the log reports are read at once
    runs_users_code  True if the user's code may change the model within an epoch
    version     a number that grows whenever the model may have changed
    log_every   the interval of step events, in steps; 0: there are none
    report      the destination of the run's events
    opened      the same object on ranks that write to the log or the terminal; None on others
    pace        times and rates; `fit` starts new ones
    """

    step_range: tuple[int, int] | None
    total_steps: int
    lr_factor: LRSchedule
    log_every: int
    stop_at: int | None

    def __init__(self, setup: Setup) -> None:
        self._steps, self._schedule, self._batches = setup.steps, setup.schedule, len(setup.train)
        self._log_every = setup.config.log_every
        self.state, self.skipped, self.sums = StepState(), 0, Sums()
        self.first_step = self.fit_calls = self.sessions = self.reached = 0
        self.first_loss = math.inf
        self.restored: tuple[int, ...] = ()
        self.stop_at, self.in_epoch = None, False
        self.metrics: Event = {}
        self.measured: Event = {}
        self.changed: dict[tuple[int, str], Changes] = {}
        self.unfollowed: StepResult | None = None
        self.reported, self.phase = ReportedEvents(), StepPhase.BETWEEN_STEPS
        self.set_step_range(None)
        self.read_every: tuple[int, ...] = (1,)
        self.reads_logged, self.runs_users_code, self.version = False, True, 0
        self.loaded: Loaded | None = None
        self.resumed: ResumePoint | None = None
        self.plan: RunPlan | None = None
        self.report: Report = NullReport()
        self.opened: Report | None = None
        self.pace = Pace(counts_tokens(setup.dataset, setup.loss))
        self.end()

    def set_step_range(self, step_range: tuple[int, int] | None) -> None:
        """Sets first step and end of the run (None: by options) and so of its schedule."""
        self.step_range, (start, self.total_steps) = step_range, step_range or (0, self._steps)
        given, steps = self._log_every, self.total_steps - start
        self.log_every = max(1, steps // STEP_EVENTS) if given is None else given
        factor = self._schedule(self.total_steps - start)
        self.lr_factor = (lambda step: factor(max(step - start, 0))) if start else factor

    def begin(self, epochs: int | None) -> None:
        """Begins a run of `epochs` more epochs, or of the steps that options ask for."""
        self.fit_calls, self.first_step, self.is_running = self.fit_calls + 1, self.state.step, True
        self.phase = StepPhase.BETWEEN_STEPS  # an error may have ended the last run in a step
        self.first_loss = math.inf
        self.metrics, self.reported, self.changed = {}, ReportedEvents(), {}
        resumed = self.resumed if self.fit_calls == 1 else None
        self.pace = self.pace.again(resumed.pace if resumed else NO_TIME)
        if epochs is not None:
            self.set_step_range((self.first_step, self.first_step + epochs * self._batches))
            self.state = StepState(self.first_step, self.epochs, 0)
            self.sums = Sums()

    def count_step(self, result: StepResult) -> None:
        """Updates the counters of the run after a step, by its result."""
        self.state = result.state
        if self.first_loss == math.inf:
            self.first_loss = mean(result.loss, result.divisor)
        if result.request >= STOPS:
            self.stop_here()
        self.skipped += not result.updated
        self.sums = self.sums.plus(result.loss, result.divisor, result.samples)
        self.pace.lap(result, self.log_every)
        self.measured = {}

    def stop_here(self) -> None:
        """Records that all ranks stop after this step, if not earlier."""
        if self.stop_at is None:
            self.stop_at = self.state.step

    def end(self) -> None:
        """Clears this rank's requests: the run is over or has failed."""
        self.stop_at, self.unfollowed, self.opened, self.is_running = None, None, None, False
        self.stop_requested = False  # to end the run
        self.suspend_requested = False  # to end it with a checkpoint, to be resumed
        self.save_requested = False  # to write a checkpoint; set by the clock of rank 0

    def report_event(self, kind: str, event: Event) -> None:
        """Writes an event of the current step to the log and the terminal, unless it was reported
        before a rank was lost and the step is a repetition."""
        if self.reported.claim(self.state.step, kind):
            self.report.event(event)

    # ---- what other ranks, or another session, go on from

    def go_on_from(self, snapshot: Snapshot) -> None:
        """Sets the counters of the run to those of a snapshot, from which it continues."""
        if snapshot.state != self.state:
            self.unfollowed, self.measured = None, {}
            self.pace.go_back(snapshot.norms)
        self.first_step, self.state = snapshot.state.step, snapshot.state
        self.restored, self.reached = (*self.restored, self.first_step), 0
        self.skipped, self.sums = snapshot.skipped, snapshot.epoch
        self.set_step_range(snapshot.run)
        if self.stop_at is not None:
            self.stop_at = min(self.stop_at, self.state.step)  # it stops here, whatever was made
        self.reported.go_back(self.state.step)

    def resume(self, resumed: ResumePoint) -> None:
        """Sets the counters of the run to those of a checkpoint, from which it continues."""
        self.go_on_from(resumed.snapshot)
        self.restored = resumed.restored
        self.pace = self.pace.again(resumed.pace)
        is_over = resumed.is_over and self.total_steps <= resumed.total_steps
        snapshot = resumed.snapshot._replace(arrays=())
        self.resumed = resumed._replace(snapshot=snapshot, is_over=is_over)

    # ---- how far it is

    @property
    def epochs(self) -> int:
        """The number of epochs that have begun."""
        return self.state.epoch + (self.state.batch > 0)

    @property
    def position(self) -> float:
        """The number of completed epochs, plus the completed part of the current one."""
        return self.state.epoch + self.state.batch / self._batches

    @property
    def logs_step(self) -> bool:
        return self.pace.window.is_over(self.log_every)

    def factors_of_epoch(self) -> list[float]:
        """Returns the learning rate factors of the steps up to the end of the epoch."""
        left = min(self._batches - self.state.batch, self.total_steps - self.state.step)
        return [self.lr_factor(self.state.step + i) for i in range(left)]

    @property
    def has_more(self) -> bool:
        """True if the run has steps left."""
        return self.state.step < self.total_steps

    @property
    def is_stopped(self) -> bool:
        """True after the step at which ranks stop; a loss may take the run back before it."""
        return self.stop_at is not None and self.state.step >= self.stop_at

    @property
    def is_behind(self) -> bool:
        """True if the next step is repeated after the loss of a rank."""
        return self.state.step < self.reached

    @property
    def is_over(self) -> bool:
        """True if all steps are made, or ranks have agreed to stop."""
        return not self.has_more or self.is_stopped

    @property
    def is_evaluated(self) -> bool:
        """True if the run makes no further step, and its last epoch has been evaluated."""
        return self.is_over and bool(self.metrics) and self.sums.samples == 0

    @property
    def epoch_is_over(self) -> bool:
        """True if the steps of an epoch are completed, but the epoch has not been evaluated yet."""
        return self.sums.samples > 0 and (self.state.batch == 0 or self.is_over)

    # ---- requests of this rank

    @property
    def asks_to_stop(self) -> bool:
        """True if this rank asks to stop or suspend the run. While steps are repeated after the
        loss of a rank, the request waits."""
        return (self.stop_requested or self.suspend_requested) and not self.is_behind

    # ---- called by strategies

    def _request(self) -> float:
        """Returns this rank's request for the end of the current step. In a step that is repeated
        after the loss of a rank, it can only be a stop on which ranks have agreed before."""
        if self.stop_at is not None and self.state.step + 1 >= self.stop_at:
            return STOPS  # a worker leaves its loop here: servers have to hear of it
        if self.asks_to_stop:
            return STOPS
        return SAVES if self.save_requested and not self.is_behind else 0.0

    @property
    def control(self) -> StepControl:
        """The functions by which a strategy, which makes the steps, asks this run for learning
        rates, requests and the number of steps, and reports events."""
        return StepControl(
            self._begin_update,
            self._request,
            lambda: self.total_steps,
            lambda event: self.report.event(event),  # noqa: PLW0108 - `report` changes later
            self._is_read,
            self._version_of_model,
            self._end_update,
        )

    def _version_of_model(self) -> int:
        """Returns a number that is another one at each call if code of the user may have changed
        the model meanwhile: within steps, or between them, where the user iterates over them."""
        self.version += self.runs_users_code or not self.in_epoch
        return self.version

    def _is_read(self, step: int) -> bool:
        """True if the host needs a step's values or time, and so waits for the device."""
        known, logged = (self.first_step + 1, self.total_steps), self.log_every
        is_logged = self.reads_logged and logged > 0 and step % logged == 0
        return step in known or is_logged or any(step % n == 0 for n in self.read_every)

    def _end_update(self) -> None:
        """Called when the update has been launched on the device: ends the phase UPDATING."""
        self.phase = StepPhase.COMPUTING

    def _begin_update(self, step: int) -> float:
        """Begins the phase UPDATING; returns the factor of the learning rates."""
        self.phase = StepPhase.UPDATING
        return self.lr_factor(step)
