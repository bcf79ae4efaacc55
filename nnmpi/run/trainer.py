"""Trainer: epochs over a data set, evaluation, saving and events."""

import itertools
import math
import time
from collections.abc import Callable, Mapping
from contextlib import closing, suppress
from dataclasses import replace
from enum import Enum, auto
from functools import partial
from typing import Any

import numpy as np

from nnmpi.comm import Comm, has_launcher, job
from nnmpi.config import Config
from nnmpi.data import Dataset
from nnmpi.metrics import Stopwatch, Sums
from nnmpi.nn import Module
from nnmpi.parallel import plan
from nnmpi.parallel.agreement import all_or_none
from nnmpi.parallel.model.optimizer_entries import OptimizerEntries, load
from nnmpi.parallel.step.executor import StepControl
from nnmpi.parallel.step.state import StepResult, StepState
from nnmpi.parallel.strategy import AgreedError, Strategy, TrainSpec
from nnmpi.run import builders, saving
from nnmpi.run.report import Event, LostOutputError, NullReport, Report
from nnmpi.run.setup import Setup, set_up
from nnmpi.run.trace import tracer


class DivergedError(AgreedError):
    """The loss is NaN or infinite."""


class ModelNotSavedError(AgreedError, saving.NotSavedError):
    """The trained model could not be written; all ranks know it."""


class Phase(Enum):
    """What this rank does; an error in a later phase may leave the model half updated."""

    BETWEEN_STEPS = auto()
    COMPUTING = auto()
    UPDATING = auto()


class Trainer:
    """One training run on all ranks of `comm`.

    `build` makes the model; `data` is a Dataset, (x, y) or (x, y, x_test, y_test). Without them
    both are those of the config. `comm` is by default all ranks that mpirun has started.
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
        setup = set_up(config, build, data, self.comm)
        self.dataset, self.task, self.part = setup.dataset, setup.trained.task, setup.trained.part
        self.standardiser, self.train, self.test, self.total_steps, self.lr_factor = setup.batches
        self.sharding, self.boundaries = setup.sharding, setup.trained.boundaries
        self.model, self.loss, self.on = self.task.model, self.task.loss, self.task.on
        self.state, self.skipped = StepState(), 0
        self.stopping = False  # all ranks have agreed to stop
        self._stop_requested = False  # on this rank
        self._phase, self._closed = Phase.BETWEEN_STEPS, False
        self._clock, self._tracer = Stopwatch(), tracer(config, self.comm)
        self.strategy = self._build_strategy(setup)
        self.optimizer = self.strategy.optimizer

    def _build_strategy(self, setup: Setup) -> Strategy:
        spec = partial(
            TrainSpec,
            optimizer=partial(builders.optimizer, self.config),
            control=StepControl(self._lr, lambda: self._stop_requested, self.total_steps),
            on_event=self._on_event,
        )
        twin = spec(*setup.twin) if setup.twin else None
        try:
            both = spec(*setup.trained, recorder=self._tracer.recorder, twin=twin)
            return plan.build(self.config, setup.layout, both)
        except ValueError as error:  # on all ranks: only the first one raises it
            self.comm.agree(error)
            raise

    def _lr(self, step: int) -> float:
        """The learning rate of a step; strategies call it just before they update parameters."""
        self._phase = Phase.UPDATING
        return self.config.lr * self.lr_factor(step)

    def _on_event(self, event: Event) -> None:
        self._report.event(event)

    @property
    def step(self) -> int:
        """The number of steps made so far."""
        return self.state.step

    @property
    def is_first(self) -> bool:
        """Whether this rank prints and saves."""
        return self.comm.rank == 0

    # ---- training

    def fit(self, report: Report | None = None) -> Event:
        """Train, evaluate after each epoch, and save; returns the last event."""
        self._check_usable()
        with all_or_none(self.comm, lambda: report or self._open_report()) as self._report:
            try:
                return self._fit()
            except BaseException as error:
                reason = str(error) or type(error).__name__
                with suppress(LostOutputError):
                    self._report.event({"event": "failed", "error": reason, "steps": self.step})
                raise

    def _check_usable(self) -> None:
        if self.step or self._closed:
            closed = " and is closed" if self._closed else ""
            raise ValueError(
                f"a Trainer runs once, and this one has made {self.step} of its "
                f"{self.total_steps} steps{closed}; make another"
            )
        trained = {p for p in self.part.parameters if p.requires_grad}
        if trained != {*self.optimizer.parameters}:
            raise ValueError(
                "requires_grad of a parameter was changed after this Trainer was made; "
                "change it in `build`"
            )

    def report(self) -> Report:
        """The report of this rank; every rank calls it, and all fail if a file cannot be opened."""
        return all_or_none(self.comm, self._open_report)

    def _open_report(self) -> Report:
        if not self.is_first:
            return NullReport()
        return Report(self.config.log, self.config.quiet, launched=has_launcher())

    def _fit(self) -> Event:
        began = time.perf_counter()
        self._report.event(self.describe())
        try:
            metrics = self._epochs()
        except AgreedError:
            self.close()
            raise
        except Exception as error:  # but not Ctrl-C, which may have interrupted an update
            self._rescue(error)
            raise
        try:
            self._save_on_all_ranks()
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
            **self._tracer.outcome(self.strategy.layout.mesh),
        }
        self._report.event(result)
        return result

    def _epochs(self) -> Event:
        """All epochs; returns the metrics of the last one."""
        for epoch in itertools.count(self.state.epoch + 1):
            train, test = self._epoch(), self.evaluate()
            self._agree_to_stop()
            self._check_finite("test loss", test.mean_loss, self.step)
            metrics = self._metrics(train, test)
            self._report.event({"event": "epoch", "epoch": epoch, **metrics})
            if self._is_over:
                break
        return {**metrics, "epochs": epoch}

    def _epoch(self) -> Sums:
        """Steps until the end of the epoch or of the run."""
        sums = Sums()
        self.model.train()
        self._clock.start()
        with closing(self.strategy.steps(self.train, self.state)) as steps:
            self._phase = Phase.COMPUTING
            for result in steps:
                self._phase = Phase.BETWEEN_STEPS
                new = self._note(result)
                sums = sums.plus(new)
                self._clock.lap(result.samples)
                self._report.progress(self.step, self.total_steps, new.mean_loss)
                if self._is_over:
                    break
                self._phase = Phase.COMPUTING
        self._phase = Phase.BETWEEN_STEPS
        self._report.end_progress()
        return sums

    def _note(self, result: StepResult) -> Sums:
        """Updates the state of the run from a step's result; returns the sums of the step."""
        self._check_finite("loss", result.loss / max(result.samples, 1), self.step + 1)
        self.state, self.stopping = result.state, self.stopping or result.stop
        self.skipped += not result.updated
        return Sums(result.loss, 0, result.samples)

    def _check_finite(self, what: str, value: float, step: int) -> None:
        """Raises DivergedError if the loss is NaN or infinite."""
        if not math.isfinite(value):
            lr = self.config.lr * self.lr_factor(self.step)
            remedy = f"--lr {lr / 10:g}" if math.isfinite(lr) else "another --lr-schedule"
            saved = "; nothing was saved" if self.config.save else ""
            raise DivergedError(
                f"the {what} became {value} at step {step} with learning rate {lr:g}; "
                f"try {remedy}, --clip-norm 1 or --lr-schedule warmup:100{saved}"
            )

    def evaluate(self) -> Sums:
        """Loss and accuracy on the test split; the model is left in evaluation mode."""
        self.model.eval()
        with self._tracer.evaluation():
            return self.strategy.evaluate(self.test, self.step)

    # ---- the end of a run

    def stop(self) -> None:
        """Stop after the current step; several ranks agree on it in that step or the next."""
        self._stop_requested = True
        self.stopping = self.stopping or self.comm.size == 1

    def _agree_to_stop(self) -> None:
        """Between epochs, agree on requests that came after the last step had agreed."""
        requests = np.array([float(self._stop_requested)])
        self.comm.all_reduce(requests, "doubling")
        self.stopping = self.stopping or bool(requests[0])

    @property
    def _is_over(self) -> bool:
        return self.step >= self.total_steps or self.stopping

    def _save_on_all_ranks(self) -> None:
        wanted = np.array([bool(self.config.save)])
        self.comm.broadcast(wanted)  # the first rank writes, whatever the others ask for
        try:
            all_or_none(self.comm, self._save if wanted[0] else lambda: None)
        except saving.NotSavedError as error:
            raise ModelNotSavedError(str(error)) from None

    def _save(self) -> None:
        path = self.config.save if self.is_first else None
        saving.write_entries(path, self.strategy.entries)

    def _rescue(self, error: Exception) -> None:
        """Saves the model after an error on this rank, if it is whole and no other rank changes it.

        Of several ranks, others may have made the step in which this one failed.
        """
        if self.comm.size == 1:
            whole = self._phase is not Phase.UPDATING
        else:
            between = self._phase is Phase.BETWEEN_STEPS
            readable = between and plan.is_whole_between_steps(self.config)
            whole = readable and self.strategy.entries.writer_has_all
        if self.step and self.is_first and whole:
            try:
                self._save()
            except Exception as other:
                error.add_note(f"and the trained model was not saved: {other}")

    def optimizer_state_dict(self) -> dict[str, np.ndarray]:
        """`Optimizer.state_dict` of all ranks, whole, on the first rank; every rank calls it."""
        parts = self.strategy.entries.parts
        return dict(OptimizerEntries(self.optimizer, self.model, parts, self.comm))

    def load_optimizer_state_dict(self, state: Mapping[str, Any]) -> None:
        """Copies what this rank has from a whole state; every rank calls it, with all of it."""
        load(self.optimizer, self.model, state, self.comm)

    def close(self) -> None:
        """Free what ranks share; every rank calls it. `fit` does so unless it fails on one rank."""
        if not self._closed:
            self._closed = True
            self.strategy.close()

    # ---- events

    def describe(self) -> Event:
        """The start event."""
        d, c = self.dataset, self.config
        slowed = {"slow_rank": c.slow_rank, "jitter": c.jitter}
        return {
            "event": "start",
            "model": c.model,
            "parameters": sum(math.prod(p.place.shape) for p in self.model.parameters()),
            "data": d.name,
            "train_samples": len(d.train.y),
            "test_samples": len(d.test.y),
            "note": d.note,
            "steps": self.total_steps,
            "batch_size": c.batch_size,
            "dtype": c.dtype,
            "device": self.on.name,
            "seed": c.seed,
            "ranks": self.comm.size,
            "sync": c.sync,
            **({"tp": c.tp} if c.tp > 1 else {}),
            **{name: value for name, value in slowed.items() if value},
            **self.strategy.describe(),
        }

    def _metrics(self, train: Sums, test: Sums) -> Event:
        return {
            "steps": self.step,
            "loss": train.mean_loss,
            "test_loss": test.mean_loss,
            "accuracy": test.accuracy,
            "samples_per_second": round(self._clock.rate, 1),
            "skipped_steps": self.skipped,
        }
