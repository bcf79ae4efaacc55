"""RunState: how far a run has come, the schedule of its learning rate, and what is requested of it.

It knows neither the Trainer, a session, nor the data: what asks it in a step may outlive them until
garbage is collected.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from enum import Enum, auto
from typing import NamedTuple, cast

from nnmpi.metrics import Sums
from nnmpi.optim.schedule import LRSchedule
from nnmpi.parallel.arrangement.flat_buffer import SAVES, STOPS
from nnmpi.parallel.planning.search import Planned
from nnmpi.parallel.step.control import StepControl
from nnmpi.parallel.step.executor import StepResult, StepState
from nnmpi.run.callbacks import Changes
from nnmpi.run.files.loading import Loaded
from nnmpi.run.report import Event, NullReport, Report
from nnmpi.run.report.pace import NO_TIME, Pace, PaceCounts, counts_tokens
from nnmpi.run.resume import Resumed
from nnmpi.run.setup.setup import Setup
from nnmpi.run.snapshot import Snapshot
from nnmpi.run.told import Told, place


class StepPhase(Enum):
    """The phase of this rank; an error in a later phase may leave the model half updated."""

    BETWEEN_STEPS = auto()
    COMPUTING = auto()
    UPDATING = auto()


class Counters(NamedTuple):
    """How far a run has come after a step; the same on all ranks that are there.

    metrics   those of the last epoch of the run that was evaluated
    changed   settings, by the step and the occasion after which callbacks have changed them
    """

    span: tuple[int, int] | None
    state: StepState
    skipped: int
    sums: Sums
    first: int
    runs: int
    stopping: bool
    metrics: Event
    pace: PaceCounts
    changed: Mapping[tuple[int, str], Changes]


class Followed(NamedTuple):
    """How far a run has come: what has followed each of its steps, or all of them but the last.

    counters   of the run, before that one is noted
    result     the step that is not noted yet, or what follows it is not done
    """

    counters: Counters
    result: StepResult | None = None

    @property
    def step(self) -> int:
        """The number of steps made."""
        return (self.result or self.counters).state.step


class VersionFacts(NamedTuple):
    """The facts about a version of the model besides its arrays; the same on all ranks."""

    head: Snapshot
    followed: Followed


class RunPlan(NamedTuple):
    """The plan that a run was made by.

    looked  how many layouts were looked at
    notes   what one should know of the figures, a line each
    """

    layout: Planned
    looked: int
    notes: list[str]

    def event(self) -> Event:
        """The fields of the plan in the event of the start of the run."""
        return {
            "layout": self.layout.flags,
            "predicted_seconds": self.layout.time.seconds,
            "predicted_bytes": self.layout.nbytes,
            "looked": self.looked,
            "notes": self.notes,
        }


class RunState:
    """The counters of a run, the same on all ranks, and what this rank does and wants.

    state     how far training has come
    skipped   the steps that were left out, since a number was not finite
    sums      over the steps of the epoch so far
    span      its first step and the one after its last, if fit(epochs=N) makes it; None: those of
              the options
    first     the step that `fit` begins with
    runs      how often `fit` was called
    sessions  how many there were
    loaded    what the file of --load had for the model
    resumed   what it goes on from, if not from the start
    plan      the layout that --plan has found, if one fits
    metrics   of the last epoch that was evaluated in this run, or how it was suspended
    changed   settings, by the step and the occasion after which callbacks have changed them
    read_every  after each so many steps something reads the model, or what the last one has shown
    told      what this rank has told
    pending   while what follows a step is not done: that step, and the counters before it
    report    of a run that has begun
    opened    the same, where this rank writes
    pace      its time and rates; `fit` begins another one
    """

    def __init__(self, setup: Setup) -> None:
        self._steps, self._schedule, self._batches = setup.steps, setup.schedule, len(setup.train)
        self.state, self.skipped, self.sums = StepState(), 0, Sums()
        self.first = self.runs = self.sessions = 0
        self.loaded: Loaded | None = None
        self.metrics: Event = {}
        self.changed: dict[tuple[int, str], Changes] = {}
        self.told, self.pending = Told(), cast(Followed | None, None)
        self.set_span(None)
        self.phase, self.in_epoch = StepPhase.BETWEEN_STEPS, False
        self.read_every: tuple[int, ...] = (1,)
        self.resumed: Resumed | None = None
        self.plan: RunPlan | None = None
        self.batch_size = setup.config.batch_size
        self.report: Report = NullReport()
        self.opened: Report | None = None
        self.pace = Pace(counts_tokens(setup.dataset, setup.loss))
        self.stopping = False  # all ranks have agreed to stop
        self.forget_requests()

    def forget_requests(self) -> None:
        """Nothing is requested of the run on this rank."""
        self.stop_requested = False  # to end it
        self.suspend_requested = False  # to end it with a checkpoint: there is more to do
        self.save_requested = False  # a checkpoint, by the clock of the first rank

    @property
    def plan_outcome(self) -> Event:
        """The time of a step that --plan predicted, beside the measured one; empty without it."""
        if self.plan is None:
            return {}
        predicted, rate = self.plan.layout.time.seconds, self.pace.rates["samples_per_second"]
        known = {"predicted_seconds": predicted}
        if rate:  # a second step was made
            measured = self.batch_size / rate
            known |= {"measured_seconds": measured, "error": predicted / measured - 1}
        return {"plan": known}

    def set_span(self, span: tuple[int, int] | None) -> None:
        """The schedule of the learning rate holds from the first step of the span to its last."""
        self.span, (start, self.total_steps) = span, span or (0, self._steps)
        factor = self._schedule(self.total_steps - start)
        self.lr_factor: LRSchedule = factor
        if start:
            self.lr_factor = lambda step: factor(max(step - start, 0))

    def begin(self, epochs: int | None) -> None:
        """A run begins: of so many epochs from the next one on, or what is left of it."""
        self.runs, self.first = self.runs + 1, self.state.step
        self.phase = StepPhase.BETWEEN_STEPS  # whatever has ended the run before
        self.metrics, self.pending = {}, None
        self.told, self.changed = Told(), {}
        resumed = self.resumed if self.runs == 1 else None
        self.pace = self.pace.again(resumed.pace if resumed else NO_TIME)
        if epochs is not None:
            self.set_span((self.first, self.first + epochs * self._batches))
            self.state = StepState(self.first, self.epochs, 0)
            self.sums = Sums()

    def end(self) -> None:
        """The run is over, or has failed."""
        self.stopping = False
        self.forget_requests()
        self.opened = self.pending = None

    @contextmanager
    def epoch_ended(self) -> Iterator[None]:
        """Within it, and after it, there are no sums of the epoch; if it fails they are back."""
        sums, self.sums = self.sums, Sums()
        try:
            yield
        except BaseException:
            self.sums = sums
            raise

    def tell(self, what: str, event: Event) -> None:
        """An event, unless it was told before a rank was lost."""
        if self.told.once(self.state.step, what):
            self.report.event(event)

    @property
    def counters(self) -> Counters:
        """The counters that other ranks need to go on from here."""
        sums = self.sums._replace(metrics={})  # which steps do not measure, and is not to be sent
        now = (self.span, self.state, self.skipped, sums, self.first, self.runs)
        return Counters(*now, self.stopping, self.metrics, self.pace.counts, dict(self.changed))

    @property
    def followed(self) -> Followed:
        """How far it has come."""
        return self.pending or Followed(self.counters)

    def counters_of(self, snapshot: Snapshot) -> Counters:
        """The counters of a snapshot of this run."""
        return self.counters._replace(
            span=snapshot.run,
            state=snapshot.state,
            skipped=snapshot.skipped,
            sums=snapshot.epoch._replace(metrics={}),
        )

    def take(self, followed: Followed) -> None:
        """The run has come so far."""
        now, self.pending = followed.counters, followed if followed.result else None
        if now.runs != self.runs:  # this rank has not begun the run of the others
            self.told = Told()
        self.set_span(now.span)
        _, self.state, self.skipped, self.sums, self.first, self.runs, *_ = now
        self.stopping, self.metrics, self.changed = now.stopping, now.metrics, {**now.changed}
        self.pace = self.pace.again(now.pace)
        self.phase, self.in_epoch = StepPhase.BETWEEN_STEPS, False

    def go_on_from(self, snapshot: Snapshot) -> None:
        """The counters are those of the snapshot."""
        if snapshot.state != self.state:
            self.pending = None
        self.first, self.state = snapshot.state.step, snapshot.state
        self.skipped, self.sums = snapshot.skipped, snapshot.epoch
        self.set_span(snapshot.run)
        self.told.go_back(self.state.step)

    def resume(self, resumed: Resumed) -> None:
        """The run goes on from a checkpoint."""
        self.go_on_from(resumed.snapshot)
        self.pace = self.pace.again(resumed.pace)
        is_over = resumed.is_over and self.total_steps <= resumed.total_steps
        snapshot = resumed.snapshot._replace(owned=())
        self.resumed = resumed._replace(snapshot=snapshot, is_over=is_over)

    def go_back(self, resumed: Resumed) -> None:
        """Steps are made again from a checkpoint on, which was told before."""
        now = self.counters_of(resumed.snapshot)
        self.take(Followed(now._replace(pace=resumed.pace, stopping=False)))
        self.told.once(self.first, "start")

    @property
    def epochs(self) -> int:
        """The number of epochs that are begun."""
        return self.state.epoch + (self.state.batch > 0)

    def factors_of_epoch(self) -> list[float]:
        """The factors that the schedule returns for the steps until the end of the epoch."""
        left = min(self._batches - self.state.batch, self.total_steps - self.state.step)
        return [self.lr_factor(self.state.step + i) for i in range(left)]

    @property
    def is_over(self) -> bool:
        """Whether no step is left."""
        return not self.has_more or self.stopping

    @property
    def has_more(self) -> bool:
        """Whether there are steps after the last one that was made."""
        return self.state.step < self.total_steps

    @property
    def is_evaluated(self) -> bool:
        """Whether no step is left, and its last epoch is evaluated."""
        return self.is_over and bool(self.metrics) and self.sums.samples == 0

    @property
    def epoch_is_over(self) -> bool:
        """Whether its steps are made, and it is not evaluated yet."""
        return self.sums.samples > 0 and (self.state.batch == 0 or self.is_over)

    # ---- what strategies ask and tell

    def _request(self) -> float:
        """The request of this rank after the step that is under way; 0 in one that is made
        again."""
        if self.told.events >= place(self.state.step + 1, "progress"):
            return 0.0
        if self.stop_requested or self.suspend_requested:
            return STOPS
        return SAVES if self.save_requested else 0.0

    @property
    def control(self) -> StepControl:
        """The functions that the steps of a run call to ask and to tell."""
        return StepControl(
            self._scheduled,
            self._request,
            lambda: self.total_steps,
            lambda event: self.report.event(event),  # noqa: PLW0108 - that of the run by then
            self._reads,
            self._launched,
        )

    def _reads(self, step: int) -> bool:
        """Whether something reads the model after so many steps, or the time of the first one."""
        known = self.first + 1, self.total_steps
        return step in known or any(step % n == 0 for n in self.read_every)

    def _launched(self) -> None:
        """The update that was scheduled last is as good as made."""
        self.phase = StepPhase.COMPUTING

    def _scheduled(self, step: int) -> float:
        """The factor of the learning rates; strategies call it just before they update."""
        self.phase = StepPhase.UPDATING
        return self.lr_factor(step)
