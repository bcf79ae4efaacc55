"""Fit: the epochs and steps of a run, their evaluation, and what follows each."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass

import numpy as np

from nnmpi.comm import Comm, RankLost
from nnmpi.metrics import mean
from nnmpi.parallel.agreement import all_or_none
from nnmpi.parallel.arrangement.flat_buffer import STOPS
from nnmpi.parallel.step.executor import StepResult
from nnmpi.parallel.strategy import AgreedError
from nnmpi.run import ends
from nnmpi.run.recovery.recovery import Recovery
from nnmpi.run.recovery.standing import RunStage
from nnmpi.run.report import Event, LostOutputError, Report
from nnmpi.run.report.pace import measured
from nnmpi.run.run_state import Followed, RunState, StepPhase
from nnmpi.run.saves import Saves
from nnmpi.run.session import Session
from nnmpi.run.told import place
from nnmpi.run.training import Training


@dataclass
class Fit:
    """One run; it asks for the session each time, since a callback may end it and open another, and
    so do ranks that are left when one is lost."""

    _training: Training
    _recovery: Recovery
    _trainer: object  # which callbacks get
    _following: Sequence[Callable[[StepResult, float], None]] = ()

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
                self._following = ()  # which know this Fit, and with it the Trainer

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
        ends.open_reports(self._training, self._recovery.news, outputs, report)
        self._saves.begin(self._comm)
        self._following = [*self._after_steps()]
        result = self._fit()
        self._saves.close()
        return result

    def _fit(self) -> Event:
        """Makes the steps of the run and what follows them; returns the event of its result."""
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
        result = ends.result(self._training, self._saves.finish(), is_suspended)
        run.tell("result", result)
        self._tell("on_end", result)
        if not is_suspended:
            self._saves.end(self._session, run.metrics)
        return result

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
        """Evaluates the model after the steps of an epoch, tells the result, and saves."""
        run, train = self._run, self._run.sums
        with run.epoch_ended():
            test = self._session.evaluate()
            ends.check_finite(self._session, "test loss", test.mean_loss, run.state.step)
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
        """Handles the result of a step; after the loss of a rank again, but for what was told."""
        run, step = self._run, result.state.step
        if self._comm.fault_tolerant:
            run.pending = Followed(run.counters, result)
        loss = self._note(result)
        if run.told.once(step, "progress"):
            run.report.progress(step, run.total_steps, loss, self._run.pace.epoch_rates)
        for follow in self._following:
            follow(result, loss)
        run.pending = None
        self._session.back_up()
        run.pace.resume()

    def _note(self, result: StepResult) -> float:
        """Updates the state of the run from a step's result; returns the loss of a sample."""
        run, every = self._run, self._session.config.check_copies
        loss = mean(result.loss, result.divisor)
        ends.check_finite(self._session, "loss", loss, result.state.step)
        run.state, run.stopping = result.state, run.stopping or result.request >= STOPS
        run.skipped += not result.updated
        run.sums = run.sums.plus(result.loss, result.divisor, result.samples)
        run.pace.lap(result)
        if every and run.state.step % every == 0:
            self._session.check_copies()
        return loss

    # ---- what else follows a step, where it is on

    def _after_steps(self) -> Iterator[Callable[[StepResult, float], None]]:
        """The features that are on, as functions of a step and its loss."""
        if self._training.sampler is not None:
            yield self._sample
        if self._training.hears_steps:
            yield self._tell_step
        if self._training.config.checkpoint_dir:
            yield lambda result, loss: self._saves.after_step(self._session, result)

    def _sample(self, result: StepResult, loss: float) -> None:
        """Tells a piece of text that the model writes now, every so many steps."""
        step, sampler = result.state.step, self._training.sampler
        if sampler is not None and step % sampler.every == 0:
            text = sampler.text(self._session)
            self._run.tell("sample", {"event": "sample", "step": step, "text": text})

    def _tell_step(self, result: StepResult, loss: float) -> None:
        """Calls callbacks after a step; ranks that make it together compare what these change."""
        self._tell("on_step", {"event": "step", "step": result.state.step, "loss": loss})
        if self._session.arrangement.steps_together:
            self._compare_settings()

    def _compare_settings(self, factors: Sequence[float] = ()) -> None:
        """Raises AgreedError, on all ranks, if a callback has changed something on some ranks, or
        if a schedule returns other factors."""
        together = self._session.arrangement.steps_together
        self._session.settings.compare(self._comm, "" if together else ", in on_epoch", factors)

    def _tell(self, occasion: str, event: Event) -> None:
        """Calls what callbacks have for this occasion, unless that was done before a rank was
        lost."""
        run, step = self._run, self._run.state.step
        for i, callback in enumerate(self._training.callbacks):
            here = place(step, occasion, i)
            if hasattr(callback, occasion) and not run.told.is_called(here):
                with run.told.call(here):
                    getattr(callback, occasion)(self._trainer, {**event, **self._session.scale})
        if run.state.step < step:  # a callback went back: the steps since then are told as others
            run.told.go_back(run.state.step)
        self._keep_changes(occasion)
        run.pace.resume()
        if self._session.is_closed and self._comm.size > 1 and occasion != "on_end":
            raise ValueError(
                f"{occasion} of a callback has closed this Trainer, whose run goes on: call "
                "trainer.stop() there, and close() after fit"
            )

    def _keep_changes(self, occasion: str) -> None:
        """Records what callbacks have changed, or changes it when a step is made again."""
        run, session = self._run, self._session
        if not self._comm.fault_tolerant or session.is_closed:
            return
        key, now = (run.state.step, occasion), session.settings.changes
        if key in run.changed:
            session.settings.change(run.changed[key])
        elif now != next(reversed(run.changed.values()), session.settings.unchanged):
            run.changed[key] = now
