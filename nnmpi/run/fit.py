"""Fit: the steps and epochs of a run, its evaluation, its file and its events."""

import math
from collections.abc import Sequence
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass

import numpy as np

from nnmpi.comm import Comm, RankLost
from nnmpi.metrics import mean
from nnmpi.parallel.agreement import all_or_none, gather_objects
from nnmpi.parallel.arrangement.flat_buffer import STOPS
from nnmpi.parallel.step.executor import StepResult
from nnmpi.parallel.strategy import AgreedError
from nnmpi.run import ends
from nnmpi.run.events import arranged_event, environment, resumed_event, start_event
from nnmpi.run.page import page
from nnmpi.run.recovery.recovery import Recovery
from nnmpi.run.recovery.standing import RunStage
from nnmpi.run.report import Event, LostOutputError, Report, open_report
from nnmpi.run.report.pace import measured
from nnmpi.run.run_state import Followed, RunState, StepPhase
from nnmpi.run.saves import Saves
from nnmpi.run.session import Session
from nnmpi.run.told import place
from nnmpi.run.training import Training


class DivergedError(AgreedError):
    """The loss is NaN or infinite."""


@dataclass
class Fit:
    """One run; it asks for the session each time, since a callback may end it and open another, and
    so do ranks that are left when one is lost."""

    _training: Training
    _recovery: Recovery
    _trainer: object  # which callbacks get

    @property
    def _run(self) -> RunState:
        return self._training.run

    @property
    def _session(self) -> Session:
        return self._training.session

    @property
    def _comm(self) -> Comm:
        return self._session.comm

    @property
    def _saves(self) -> Saves:
        return self._training.saves

    def run(self, report: Report | None, epochs: int | None) -> Event:
        """All of it, or so many epochs more; returns the last event."""
        with ExitStack() as outputs:
            try:
                return self._recovery.run(lambda: self._go_on(outputs, report, epochs))
            except BaseException as error:
                self._fail(error)
                raise
            finally:
                self._run.end()
                self._recovery.stage = RunStage.READY

    def _fail(self, error: BaseException) -> None:
        """The run has failed, whoever is lost now. What all ranks have found before the last step
        ends the session too."""
        is_running = self._recovery.stage == RunStage.RUNNING and not self._run.is_evaluated
        if isinstance(error, AgreedError) and is_running:
            with suppress(RankLost):
                self._saves.close()
                self._session.close()
        self._saves.abandon()
        if self._run.opened is not None:
            reason = str(error) or type(error).__name__
            failed = {"event": "failed", "error": reason, "steps": self._run.state.step}
            with suppress(LostOutputError):
                self._run.opened.event(failed)

    def _go_on(self, outputs: ExitStack, report: Report | None, epochs: int | None) -> Event:
        """The run from where it is: its begin, or what is left of it after a loss."""
        run = self._run
        if self._recovery.stage != RunStage.RUNNING:
            ends.check_ready(run, self._session, epochs)
            self._comm.meet("fit" if epochs is None else f"fit(epochs={epochs})")
            self._session.wake()
            run.begin(epochs)
            self._recovery.stage = RunStage.RUNNING
        self._open_report(outputs, report)
        self._saves.begin(self._comm)
        result = self._fit()
        self._saves.close()
        return result

    def _open_report(self, outputs: ExitStack, report: Report | None) -> None:
        """Opens what this rank writes; tells how the run starts, and what was lost since then."""
        run, comm, config, recovery = self._run, self._comm, self._session.config, self._recovery
        resumed = run.resumed if run.runs == 1 else None
        is_told = run.told.events >= place(run.first, "start")
        mark = resumed.mark if resumed and not is_told else None
        found = open_report(config, comm, report or run.opened, run.runs > 1 or is_told, mark)
        if comm.rank == 0 or report:
            if run.opened is None:
                outputs.enter_context(found)
                page.write_at_end(outputs, config, found, writes=comm.rank == 0)
                if is_told and config.log:
                    run.told.is_in_log(config.log)
            run.opened = found
        run.report = found
        begun = resumed_event if resumed else start_event
        event = {**begun(self._session, run), **environment(self._session)}
        if run.told.once(run.first, "start"):
            arranged = arranged_event(self._session.arrangement) if run.opened else {}
            run.report.event({**event, **arranged})
        for event in recovery.news:
            run.report.event(event)
        recovery.news.clear()

    def _fit(self) -> Event:
        """Its steps, and what follows them."""
        try:
            with self._training.tracer.of_run():
                self._epochs()
        except (AgreedError, RankLost):
            raise
        except Exception as error:  # but not Ctrl-C, which may have interrupted an update
            ends.rescue(self._session, error)
            raise
        run, is_suspended = self._run, "checkpoint" in self._run.metrics
        if not is_suspended:
            self._session.check_copies()
            ends.save(self._session)
            self._session.check_copies(buffers=True)  # after the model was saved: nothing is lost
        result = self._finish(run.metrics, is_suspended)
        run.tell("result", result)
        self._tell("on_end", result)
        if not is_suspended:
            self._saves.end(self._session, run.metrics)
        return result

    def _finish(self, metrics: Event, is_suspended: bool) -> Event:
        """Ranks that have copies of the model have the same ones, and all of their parts."""
        strategy, written = self._session.strategy, self._saves.finish()
        digest = {} if is_suspended else {"parameters_sha256": strategy.entries.sha256()}
        outcome = strategy.finish()
        self._session.rest()
        footprint = self._training.footprint.event(strategy.traffic.sent)
        stopped = "suspended" if is_suspended else "stopped"
        return {
            "event": stopped if self._run.stopping else "done",
            **metrics,
            "seconds": self._run.pace.seconds,
            "ranks": self._comm.size,
            "layout": strategy.layout.mesh.axes,
            **outcome,
            **digest,
            **written,
            "measured": gather_objects(self._comm, footprint),
            **self._training.tracer.outcome(strategy.layout.mesh),
            **self._run.plan_outcome,
        }

    def _epochs(self) -> None:
        """All epochs that are left; or the run is suspended."""
        run = self._run
        while not run.is_evaluated:
            self._epoch()
            if run.stopping and self._requests()[1]:
                run.metrics = self._saves.suspend(self._session)
                return
            self._evaluate_epoch()

    def _evaluate_epoch(self) -> None:
        """What follows the steps of an epoch."""
        run, train = self._run, self._run.sums
        with run.epoch_ended():
            test = self._session.evaluate()
            self._check_finite("test loss", test.mean_loss, run.state.step)
            metrics = {
                "steps": run.state.step,
                **measured(self._session.setup.dataset, self._session.setup.loss, train, test),
                **run.pace.rates,
                "skipped_steps": run.skipped,
            }
            facts = {"lr": self._session.last_lr, **self._session.scale, **run.pace.of_epoch()}
            event = {"event": "epoch", "epoch": run.epochs, **metrics, **facts}
            run.tell("epoch", event)
            self._tell("on_epoch", event)
            # requests may have come after the last step had agreed
            stops, suspends, saves = self._requests()
            suspends = suspends and run.has_more
            run.stopping = run.stopping or stops or suspends
            if suspends:
                run.metrics = self._saves.suspend(self._session, metrics)
                return
            if not run.is_over:
                self._saves.after_epoch(self._session, metrics, saves)
            run.metrics = {**metrics, "epochs": event["epoch"]}
        run.pace.resume()

    def _requests(self) -> list[bool]:
        """Whether some rank wants to stop the run, to suspend it, and a checkpoint."""
        run = self._run
        row = np.array([run.stop_requested, run.suspend_requested, self._saves.is_due()], float)
        self._comm.all_reduce(row, "doubling")
        wanted: list[bool] = (row > 0).tolist()
        return wanted

    def _epoch(self) -> None:
        """Steps until the end of the epoch or of the run, in one session or several."""
        run, sessions = self._run, 0
        run.in_epoch = True
        if run.sums.samples:
            run.pace.resume()
        else:
            run.pace.start()
        try:
            if run.pending is not None and run.pending.result is not None:
                self._follow(run.pending.result)
            while sessions != run.sessions and not run.epoch_is_over:
                sessions = run.sessions
                self._make_steps()
        finally:
            run.in_epoch = False
        run.report.end_progress()

    def _make_steps(self) -> None:
        """Steps until the end of the epoch, of the run or of the session."""
        run = self._run
        self._session.model.train()
        own = self._comm.size > 1 and "lr_schedule" in self._session.setup.own
        self._compare_settings(all_or_none(self._comm, run.factors_of_epoch) if own else ())
        with closing(self._session.steps()) as steps:
            run.phase = StepPhase.COMPUTING
            for result in steps:
                run.phase = StepPhase.BETWEEN_STEPS
                self._follow(result)
                if run.is_over and not result.is_followed:
                    break
                run.phase = StepPhase.COMPUTING
        run.phase = StepPhase.BETWEEN_STEPS

    def _follow(self, result: StepResult) -> None:
        """What follows a step; after a loss it is done again, but for what was told."""
        run, step = self._run, result.state.step
        run.pending = Followed(run.counters, result)
        loss = self._note(result)
        if run.told.once(step, "progress"):
            run.report.progress(step, run.total_steps, loss, self._run.pace.epoch_rates)
        self._sample()
        self._tell("on_step", {"event": "step", "step": step, "loss": loss})
        if self._training.hears_steps and self._session.arrangement.steps_together:
            self._compare_settings()
        self._saves.after_step(self._session, result)
        run.pending = None
        self._session.back_up()
        run.pace.resume()

    def _note(self, result: StepResult) -> float:
        """Updates the state of the run from a step's result; returns the loss of a sample."""
        run, every = self._run, self._session.config.check_copies
        loss = mean(result.loss, result.divisor)
        self._check_finite("loss", loss, result.state.step)
        run.state, run.stopping = result.state, run.stopping or result.request >= STOPS
        run.skipped += not result.updated
        run.sums = run.sums.plus(result.loss, result.divisor, result.samples)
        run.pace.lap(result)
        if every and run.state.step % every == 0:
            self._session.check_copies()
        return loss

    def _sample(self) -> None:
        """Tells a piece of text that the model writes now, where --sample-every asks for one."""
        step = self._run.state.step
        if self._training.sampler is not None and step % self._training.sampler.every == 0:
            text = self._training.sampler.text(self._session)
            self._run.tell("sample", {"event": "sample", "step": step, "text": text})
            self._run.pace.resume()

    def _compare_settings(self, factors: Sequence[float] = ()) -> None:
        """Raises AgreedError, on all ranks, if a callback has changed something on some ranks, or
        if a schedule returns other factors."""
        together = self._session.arrangement.steps_together
        self._session.settings.compare(self._comm, "" if together else ", in on_epoch", factors)

    def _check_finite(self, what: str, value: float, step: int) -> None:
        """Raises DivergedError if a loss is NaN or infinite."""
        if not math.isfinite(value):
            base, lr = self._session.optimizer.param_groups[0]["lr"], self._session.last_lr
            remedy = f"--lr {base / 10:g}" if lr <= base else "another --lr-schedule"
            saved = "; nothing was saved" if self._session.config.save else ""
            raise DivergedError(
                f"the {what} became {value} at step {step} with learning rate {lr:g}; "
                f"try {remedy}, --clip-norm 1 or --lr-schedule warmup:100{saved}"
            )

    def _tell(self, occasion: str, event: Event) -> None:
        """Calls what callbacks have for this occasion, unless that was done before a rank was
        lost."""
        run, step = self._run, self._run.state.step
        for i, callback in enumerate(self._training.callbacks):
            here = place(step, occasion, i)
            if hasattr(callback, occasion) and not run.told.is_called(here):
                with run.told.call(here):
                    getattr(callback, occasion)(self._trainer, {**event, **self._session.scale})
        self._keep_changes(occasion)
        run.pace.resume()
        if self._session.is_closed and self._comm.size > 1 and occasion != "on_end":
            raise ValueError(
                f"{occasion} of a callback has closed this Trainer, whose run goes on: call "
                "trainer.stop() there, and close() after fit"
            )

    def _keep_changes(self, occasion: str) -> None:
        """What callbacks have changed here they change in a step that is made again."""
        run, session = self._run, self._session
        if not self._comm.fault_tolerant or session.is_closed:
            return
        key, now = (run.state.step, occasion), session.settings.changes
        if key in run.changed:
            session.settings.change(run.changed[key])
        elif now != next(reversed(run.changed.values()), session.settings.unchanged):
            run.changed[key] = now
