"""Trainer: epochs over a data set, evaluation, saving and events."""

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing, suppress
from typing import Any

import numpy as np

from nnmpi.comm import Comm, job
from nnmpi.config import Config
from nnmpi.data import Dataset
from nnmpi.metrics import Metric, Sums, mean
from nnmpi.nn import Module
from nnmpi.optim.schedule import Schedule
from nnmpi.parallel.agreement import all_or_none, gather_objects
from nnmpi.parallel.step.executor import StepResult, StepState
from nnmpi.parallel.stores import stores_of
from nnmpi.parallel.strategy import AgreedError
from nnmpi.run import consistency
from nnmpi.run.between_steps import BetweenSteps
from nnmpi.run.callbacks import check_callbacks
from nnmpi.run.files import saving
from nnmpi.run.measures import counts_tokens, measured
from nnmpi.run.report import Event, LostOutputError, Report, open_report
from nnmpi.run.report.events import devices, environment, start_event
from nnmpi.run.report.pace import Pace
from nnmpi.run.resumable import StepPhase
from nnmpi.run.setup.optimizers import MakeOptimizer
from nnmpi.run.setup.setup import NO_METRICS, set_up


class DivergedError(AgreedError):
    """The loss is NaN or infinite."""


class Trainer(BetweenSteps):
    """A model in training on all ranks of `comm`; it lives until `close`, or the end of a `with`.

    `build` makes the model; `data` is a Dataset, (x, y) or (x, y, x_test, y_test), where x may be
    a tuple or a dict of arrays (see nnmpi.data.from_arrays). Without them both are those of the
    config. `comm` is by default all ranks that mpirun has started.

    loss: of nnmpi.nn, or a function of scores and labels that returns the mean over the samples
    metrics: by name, functions of scores and labels, as NumPy arrays, that return a sum over the
        samples and what to divide it by; losses of classes have the accuracy without it
    callbacks: objects with any of on_step, on_epoch, on_end (see nnmpi.run.callbacks)
    optimizer: a function of a list of (path, parameter) that returns their optimizer
    schedule: a function of the step that returns a factor of the learning rates
    """

    def __init__(
        self,
        config: Config,
        build: Callable[[], Module] | None = None,
        data: Dataset | tuple[Any, ...] | None = None,
        comm: Comm | None = None,
        *,
        loss: Any = None,
        metrics: Mapping[str, Metric] = NO_METRICS,
        callbacks: Sequence[object] = (),
        optimizer: MakeOptimizer | None = None,
        schedule: Schedule | None = None,
    ) -> None:
        comm = job() if comm is None else comm
        setup = set_up(config, build, data, comm, loss, metrics, optimizer, schedule)
        self.callbacks = all_or_none(comm, lambda: check_callbacks(callbacks))
        hears_steps = any(hasattr(one, "on_step") for one in self.callbacks)
        self._hears_steps = any(gather_objects(comm, hears_steps))  # some rank does
        super().__init__(setup, comm)

    # ---- training

    def fit(self, report: Report | None = None, *, epochs: int | None = None) -> Event:
        """Train, evaluate after each epoch, and save; returns the last event.

        With `epochs` it makes so many more, from here on, over which the schedule of the learning
        rate begins anew. Counts of steps and epochs go on.
        """
        self._check_ready(epochs)
        self._begin(epochs)
        with open_report(self.config, self.comm, report, self._runs > 1) as self._report:
            try:
                return self._fit()
            except BaseException as error:
                reason = str(error) or type(error).__name__
                with suppress(LostOutputError):
                    self._report.event({"event": "failed", "error": reason, "steps": self.step})
                raise
            finally:
                self.stopping = self._stop_requested = False

    def _check_ready(self, epochs: int | None) -> None:
        """Raises ValueError unless there is a run to make, of what the optimizer has."""
        made, total = self.step, self.total_steps
        if self._closed:
            raise ValueError(
                f"this Trainer has made {made} of its {total} steps and is closed, by close() or "
                "since its run failed; make another, or restore a snapshot"
            )
        if epochs is not None:
            Config(epochs=epochs)
        elif self._runs and made > self._first:
            raise ValueError(
                f"the run is over, after {made} of its {total} steps: fit(epochs=N) makes N more "
                "epochs"
            )
        elif made >= total and not self._epoch_is_over:
            raise ValueError(
                f"the snapshot is of step {made}, and this run ends after {total} steps: "
                "make the Trainer with more epochs or steps, or call fit(epochs=N)"
            )
        # by paths, which all ranks have, also where the parameters are elsewhere
        now = {path for path, p in self.model.named_parameters() if p.requires_grad}
        trained = {v.path for v in self.arrangement.graph.variables if v.is_trained}
        if now - trained or (not made and self.settings.trains_others):
            raise ValueError(
                "requires_grad of a parameter was changed after this Trainer was made; "
                "change it in `build`"
            )

    def _begin(self, epochs: int | None) -> None:
        """All ranks begin a run: of so many epochs from the next one on, or what is left of it."""
        self.comm.meet("fit" if epochs is None else f"fit(epochs={epochs})")
        made, steps = self.step, (epochs or 0) * len(self.train)
        self._resting.close()
        self._rests, self._runs, self._first = False, self._runs + 1, made
        if epochs is None:
            return
        self._set_run((made, made + steps))
        self.state = StepState(made, self.state.epoch + (self.state.batch > 0), 0)
        self._sums = Sums()

    def _fit(self) -> Event:
        self._pace = Pace(counts_tokens(self._setup.dataset, self._setup.loss))
        self._report.event(
            {**self.describe(), **environment(self.config, self.comm, self.arrangement)}
        )
        try:
            with self._tracer.of_run():
                metrics = self._epochs()
        except AgreedError:
            self.close()
            raise
        except Exception as error:  # but not Ctrl-C, which may have interrupted an update
            self._rescue(error)
            raise
        self._check_copies()
        self._save_on_all_ranks()
        self._check_copies(buffers=True)  # after the model was saved: nothing is lost
        digest = self.strategy.entries.sha256()
        outcome = self.strategy.finish()
        for store in stores_of(self.part.parameters):
            self._resting.enter_context(store.at_rest())
        self._rests = True
        result = {
            "event": "stopped" if self.stopping else "done",
            **metrics,
            "seconds": self._pace.seconds,
            "ranks": self.comm.size,
            "layout": self.strategy.layout.mesh.axes,
            **outcome,
            "parameters_sha256": digest,
            **self._tracer.outcome(self.strategy.layout.mesh),
        }
        self._report.event(result)
        self._tell("on_end", result)
        return result

    def _epochs(self) -> Event:
        """All epochs; returns the metrics of the last one."""
        while True:
            train, test = self._epoch(), self._tested()
            epoch = self.state.epoch + (self.state.batch > 0)
            self._check_finite("test loss", test.mean_loss, self.step)
            metrics = self._metrics(train, test)
            of_epoch = {"lr": self.last_lr, **self.scale, **self._pace.of_epoch()}
            event = {"event": "epoch", "epoch": epoch, **metrics, **of_epoch}
            self._report.event(event)
            self._tell("on_epoch", event)
            # requests may have come after the last step had agreed
            requests = np.array([float(self._stop_requested)])
            self.comm.all_reduce(requests, "doubling")
            self.stopping = self.stopping or bool(requests[0])
            if self._is_over:
                return {**metrics, "epochs": epoch}

    def _epoch(self) -> Sums:
        """Steps until the end of the epoch or of the run, in one session or several."""
        self._in_epoch, session = True, 0
        self._pace.start()
        try:
            while session != self._sessions and not self._epoch_is_over:
                session = self._sessions
                self._make_steps()
        finally:
            self._in_epoch = False
        self._report.end_progress()
        sums, self._sums = self._sums, Sums()
        return sums

    @property
    def _epoch_is_over(self) -> bool:
        """Whether its steps are made, and it is not evaluated yet."""
        return self._sums.samples > 0 and (self.state.batch == 0 or self._is_over)

    def _make_steps(self) -> None:
        """Steps until the end of the epoch, of the run or of the session."""
        self.model.train()
        own = self.comm.size > 1 and "lr_schedule" in self._setup.own
        self._compare_settings(all_or_none(self.comm, self._factors_of_epoch) if own else ())
        with closing(self.strategy.steps(self.train, self.state)) as self._steps:
            self._phase = StepPhase.COMPUTING
            for result in self._steps:
                self._phase = StepPhase.BETWEEN_STEPS
                loss = self._note(result)
                self._pace.lap(result)
                self._report.progress(self.step, self.total_steps, loss, self._pace.epoch_rates)
                if sample := self._sample():
                    self._report.event(sample)
                    self._pace.resume()
                self._tell("on_step", {"event": "step", "step": self.step, "loss": loss})
                if self._hears_steps and self.arrangement.steps_together:
                    self._compare_settings()
                if self._is_over:
                    break
                self._phase = StepPhase.COMPUTING
        self._phase = StepPhase.BETWEEN_STEPS

    def _note(self, result: StepResult) -> float:
        """Updates the state of the run from a step's result; returns the loss of a sample."""
        loss = mean(result.loss, result.divisor)
        self._check_finite("loss", loss, self.step + 1)
        self.state, self.stopping = result.state, self.stopping or result.stop
        self.skipped += not result.updated
        self._sums = self._sums.plus(result.loss, result.divisor, result.samples)
        if self.config.check_copies and self.step % self.config.check_copies == 0:
            self._check_copies()
        return loss

    def _factors_of_epoch(self) -> list[float]:
        """What the schedule returns until the end of the epoch."""
        left = min(len(self.train) - self.state.batch, self.total_steps - self.step)
        return [self.lr_factor(self.step + i) for i in range(left)]

    def _compare_settings(self, factors: Sequence[float] = ()) -> None:
        """Raises AgreedError, on all ranks, if a callback has changed something on some ranks, or
        if a schedule returns other factors."""
        together = self.arrangement.steps_together
        self.settings.compare(self.comm, "" if together else ", in on_epoch", factors)

    def _check_copies(self, buffers: bool = False) -> None:
        """Raises AgreedError, on all ranks, if copies of parameters, or of buffers, differ."""
        if self.config.check_copies and self.comm.size > 1 and self.arrangement.steps_together:
            consistency.check_copies(self.strategy.entries.parts, self.step, buffers)

    def _check_finite(self, what: str, value: float, step: int) -> None:
        """Raises DivergedError if a loss is NaN or infinite."""
        if not math.isfinite(value):
            base, lr = self.optimizer.param_groups[0]["lr"], self.last_lr
            remedy = f"--lr {base / 10:g}" if lr <= base else "another --lr-schedule"
            saved = "; nothing was saved" if self.config.save else ""
            raise DivergedError(
                f"the {what} became {value} at step {step} with learning rate {lr:g}; "
                f"try {remedy}, --clip-norm 1 or --lr-schedule warmup:100{saved}"
            )

    def _tell(self, occasion: str, event: Event) -> None:
        for callback in self.callbacks:
            if hasattr(callback, occasion):
                getattr(callback, occasion)(self, {**event, **self.scale})
        self._pace.resume()

    def stop(self) -> None:
        """Stop after the current step; several ranks agree on it in that step or the next."""
        self._stop_requested = True
        self.stopping = self.stopping or self.comm.size == 1

    @property
    def _is_over(self) -> bool:
        return self.step >= self.total_steps or self.stopping

    def _save_on_all_ranks(self) -> None:
        wanted = np.array([bool(self.config.save)])
        self.comm.broadcast(wanted)  # the first rank writes, whatever the others ask for
        problems: list[str] = []

        def write() -> None:
            try:
                self._write(self.config.save)
            except saving.NotSavedError as error:
                problems.append(str(error))

        if wanted[0]:
            all_or_none(self.comm, write)
            for problem in gather_objects(self.comm, problems)[0]:
                raise AgreedError(problem)

    def _rescue(self, error: Exception) -> None:
        """Saves the model after an error on this rank, if it is whole and no other rank changes it.

        Of several ranks, others may have made the step in which this one failed.
        """
        if self._closed:
            return
        if self.comm.size == 1:
            whole = self._phase is not StepPhase.UPDATING
        else:
            whole = self._phase is StepPhase.BETWEEN_STEPS and self._first_has_all
        if self.step and self.is_first and whole:
            try:
                self._write(self.config.save)
            except Exception as other:
                error.add_note(f"and the trained model was not saved: {other}")

    def describe(self) -> Event:
        """The start event."""
        event = start_event(self._setup, self.config, self.comm.size, self.model, self.strategy)
        left = self.total_steps - self.step + self.state.batch
        epochs = -(-left // len(self.train))
        event |= {"steps": self.total_steps, "epochs": epochs, **devices(self.arrangement)}
        if self.loaded and self.config.load_partial:
            event["loaded"] = self.loaded._asdict()
        return event | ({"warning": self.warning} if self.warning else {})

    def _metrics(self, train: Sums, test: Sums) -> Event:
        """Losses, metrics and rates of an epoch."""
        found = measured(self._setup.dataset, self._setup.loss, train, test)
        return {"steps": self.step, **found, **self._pace.rates, "skipped_steps": self.skipped}
