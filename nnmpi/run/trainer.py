"""Trainer: epochs over a data set, evaluation, files and reports."""

import itertools
import math
import time
from collections.abc import Callable
from contextlib import closing, suppress
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

import numpy as np

from nnmpi.comm import Comm, has_launcher, job
from nnmpi.config import Config
from nnmpi.data import Dataset
from nnmpi.metrics import Stopwatch, Sums
from nnmpi.nn import Module
from nnmpi.parallel import plan
from nnmpi.parallel.executor import StepControl
from nnmpi.parallel.state import StepResult, StepState
from nnmpi.parallel.strategy import AgreedError, Strategy, TrainSpec
from nnmpi.run import builders, saving
from nnmpi.run.report import Event, LostOutputError, Report, Silence
from nnmpi.run.setup import Prepared, all_or_none, prepared

T = TypeVar("T")


class DivergedError(AgreedError):
    """The loss is NaN or infinite."""


class Trainer:
    """One run on all ranks of `comm`; `fit` trains and returns the event that describes the result.

    `build` makes the model; `data` is a Dataset, (x, y) or (x, y, x_test, y_test). Without them the
    config names both. Without `comm` the ranks are those that mpirun has started.
    """

    def __init__(
        self,
        config: Config,
        build: Callable[[], Module] | None = None,
        data: Dataset | tuple[Any, ...] | None = None,
        comm: Comm | None = None,
    ) -> None:
        if build is not None:
            config = replace(config, model=getattr(build, "__name__", type(build).__name__))
        self.config, self.comm = config, job() if comm is None else comm
        self.state, self.skipped = StepState(), 0
        self.stopping = self._stop_requested = False
        self.agreed = False  # the error that is raised is raised on all ranks
        self._in_step = self._updating = self._closed = False
        parts = prepared(config, build, data, self.comm)
        self.dataset, self.task, self.standardiser = parts.dataset, parts.task, parts.standardiser
        self.train, self.test = parts.train, parts.test
        self.total_steps, self.factor = parts.steps, parts.factor
        self.model, self.loss, self.on = self.task.model, self.task.loss, self.task.on
        self.strategy = self._built(self._spec(parts))
        self.optimizer = self.strategy.optimizer
        self._clock = Stopwatch()

    def _built(self, spec: TrainSpec) -> Strategy:
        """The strategy. An error of it is the same on all ranks, and is raised on one."""
        try:
            return plan.build(self.config, self.comm, spec)
        except ValueError as error:
            self.comm.agree(error)
            raise

    def all_or_none(self, f: Callable[[], T]) -> T:
        """Calls f on every rank; if it fails on some rank, it fails on all."""
        self.agreed = True
        result = all_or_none(self.comm, f)
        self.agreed = False
        return result

    @property
    def step(self) -> int:
        """Steps made so far."""
        return self.state.step

    @property
    def is_first(self) -> bool:
        """Whether this rank prints and saves."""
        return self.comm.rank == 0

    def _spec(self, parts: Prepared) -> TrainSpec:
        """What is to be trained, with its twin if there is one."""
        control = StepControl(self._lr, lambda: self._stop_requested, self.total_steps)
        tasks = [task for task in (parts.task, parts.twin) if task is not None]
        make_optimizer = partial(builders.optimizer, self.config)
        main, *twins = (
            TrainSpec(task, order, make_optimizer, control, self._on_event)
            for task, order in zip(tasks, parts.order, strict=True)
        )
        return main._replace(twin=twins[0] if twins else None)

    def _lr(self, step: int) -> float:
        """The learning rate of a step; parameters are updated after this call."""
        self._updating = True
        return self.config.lr * self.factor(step)

    def _on_event(self, event: Event) -> None:
        self._out.event(event)

    # ---- training

    def fit(self, report: Report | None = None) -> Event:
        """Train, evaluating after each epoch; save; return the last event."""
        if self.step:
            raise ValueError(
                f"a Trainer runs once, and this one has made {self.step} of its "
                f"{self.total_steps} steps; make another to go on"
            )
        if self._closed:
            raise ValueError("this Trainer is closed; make another to train")
        trained = {p for p in self.model.parameters() if p.requires_grad}
        if trained != {*self.optimizer.parameters}:
            raise ValueError(
                "parameters were frozen or thawed after this Trainer was made: do it in `build`"
            )
        with report or self._opened() as out:
            self._out = out
            try:
                return self._fit(out)
            except BaseException as error:
                reason = str(error) or type(error).__name__
                with suppress(LostOutputError):
                    out.event({"event": "failed", "error": reason, "steps": self.step})
                raise

    def report(self) -> Report:
        """The report of this rank; if the first rank cannot open its files, all ranks fail."""
        return self.all_or_none(self._opened)

    def _opened(self) -> Report:
        if not self.is_first:
            return Silence()
        return Report(self.config.log, self.config.quiet, launched=has_launcher())

    def _fit(self, out: Report) -> Event:
        began = time.perf_counter()
        out.event(self.describe())
        try:
            metrics = self._epochs(out)
        except AgreedError:
            self.close()
            raise
        except Exception as error:  # not Ctrl-C, which may have cut an update in two
            self._rescue(error)
            raise
        try:
            self.all_or_none(self._save)
            digest = self.strategy.entries.sha256()
        finally:
            self.close()
        result = {
            "event": "stopped" if self.stopping else "done",
            **metrics,
            "seconds": round(time.perf_counter() - began, 4),
            "ranks": self.comm.size,
            "layout": self.strategy.layout.mesh.axes,
            **self.strategy.outcome(),
            "parameters_sha256": digest,
        }
        out.event(result)
        return result

    def _epochs(self, out: Report) -> Event:
        """All epochs; returns the metrics of the last one."""
        for epoch in itertools.count(1):
            train, test = self._epoch(out), self.evaluate()
            self._agree_to_stop()
            self._check_finite("test loss", test.mean_loss)
            metrics = self._metrics(train, test)
            out.event({"event": "epoch", "epoch": epoch, **metrics})
            if self._is_over:
                break
        return {**metrics, "epochs": epoch}

    def _save(self) -> None:
        """Writes the model on the first rank; all others send what it lacks, also if that fails."""
        if not self.config.save:
            return
        entries = self.strategy.entries
        arrays = (entry.value for entry in entries)
        try:
            if self.is_first:
                index = [saving.Info(*info) for info in entries.index()]
                saving.write(self.config.save, index, arrays)
        finally:
            for _ in arrays:
                pass

    def _rescue(self, error: Exception) -> None:
        """Saves the model after an error of this rank alone, if no other rank changes it."""
        others = self.comm.size > 1
        torn = self._updating or (others and self._in_step)
        alone = not others or (plan.in_step(self.config) and self.strategy.entries.writer_has_all)
        if self.step and self.is_first and alone and not torn:
            try:
                self._save()
            except Exception as lost:
                error.add_note(f"and the trained model is not saved: {lost}")

    def close(self) -> None:
        """Frees what ranks share; every rank calls it. `fit` does, if all ranks end alike."""
        if not self._closed:
            self._closed = True
            self.strategy.close()

    @property
    def _is_over(self) -> bool:
        return self.step >= self.total_steps or self.stopping

    def stop(self) -> None:
        """End after the current step, or the next: all ranks agree on it in a step."""
        self._stop_requested = True
        self.stopping = self.stopping or self.comm.size == 1

    def _agree_to_stop(self) -> None:
        """Between two epochs, all ranks agree on a request that came too late for the last step."""
        requests = np.array([float(self._stop_requested)])
        self.comm.all_reduce(requests, "doubling")
        self.stopping = self.stopping or bool(requests[0])

    def _epoch(self, out: Report) -> Sums:
        """The steps of an epoch, until it or the run ends."""
        sums = Sums()
        self.model.train()
        self._clock.start()
        with closing(self.strategy.steps(self.train, self.state)) as steps:
            self._in_step = True
            for done in steps:
                self._in_step = self._updating = False
                new = self._note(done)
                sums = sums.plus(new)
                self._clock.lap(done.samples)
                out.progress(self.step, self.total_steps, new.mean_loss)
                if self._is_over:
                    break
                self._in_step = True
        self._in_step = False
        out.end_progress()
        return sums

    def _note(self, done: StepResult) -> Sums:
        """Takes the result of a step; a loss that is not finite ends the run on all ranks."""
        self._check_finite("loss", done.loss / max(done.samples, 1), 1)
        self.state, self.stopping = done.state, self.stopping or done.stop
        self.skipped += not done.updated
        return Sums(done.loss, 0, done.samples)

    def _check_finite(self, what: str, value: float, ahead: int = 0) -> None:
        """Raises DivergedError if the loss is NaN or infinite."""
        if not math.isfinite(value):
            lr = self.config.lr * self.factor(self.step)
            less = f"--lr {lr / 10:g}" if math.isfinite(lr) else "another --lr-schedule"
            saved = "; nothing was saved" if self.config.save else ""
            raise DivergedError(
                f"the {what} became {value} at step {self.step + ahead} with learning rate {lr:g}; "
                f"try {less}, --clip-norm 1 or --lr-schedule warmup:100{saved}"
            )

    def evaluate(self) -> Sums:
        """Loss and accuracy on the test split; the model is left in evaluation mode."""
        self.model.eval()
        return self.strategy.evaluate(self.test, self.step)

    # ---- events

    def describe(self) -> Event:
        """The start event."""
        d = self.dataset
        return {
            "event": "start",
            "model": self.config.model,
            "parameters": sum(math.prod(p.place.shape) for p in self.model.parameters()),
            "data": d.name,
            "train_samples": len(d.train.y),
            "test_samples": len(d.test.y),
            "note": d.note,
            "steps": self.total_steps,
            "batch_size": self.config.batch_size,
            "dtype": self.config.dtype,
            "device": self.on.name,
            "seed": self.config.seed,
            "ranks": self.comm.size,
            "sync": self.config.sync,
            **{k: v for k, v in self._slowed().items() if v is not None},
            **self.strategy.describe(),
        }

    def _slowed(self) -> Event:
        return {name: getattr(self.config, name) for name in ("slow_rank", "jitter")}

    def _metrics(self, train: Sums, test: Sums) -> Event:
        return {
            "steps": self.step,
            "loss": train.mean_loss,
            "test_loss": test.mean_loss,
            "accuracy": test.accuracy,
            "samples_per_second": round(self._clock.rate, 1),
            "skipped_steps": self.skipped,
        }
