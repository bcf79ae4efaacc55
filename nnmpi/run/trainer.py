"""Trainer: epochs of steps over a data set, evaluation, files and reports."""

import itertools
import math
import time
from collections.abc import Callable
from contextlib import closing, suppress
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

import numpy as np

from nnmpi import data
from nnmpi.autograd import no_grad
from nnmpi.comm import Comm, has_launcher, job
from nnmpi.config import Config
from nnmpi.data import Dataset
from nnmpi.metrics import Stopwatch, Sums
from nnmpi.nn import Module
from nnmpi.nn.bits import parameters_sha256
from nnmpi.nn.passes import Pass
from nnmpi.parallel import plan
from nnmpi.parallel.executor import Stepped, Wishes
from nnmpi.parallel.strategy import AgreedError, Job, Strategy
from nnmpi.run import builders, saving
from nnmpi.run.report import Event, LostOutputError, Report, Silence
from nnmpi.run.setup import Prepared, prepared, together

T = TypeVar("T")


class DivergedError(AgreedError):
    """The loss is no longer a number."""


class Trainer:
    """One run, on all ranks of `comm` together. `fit` trains, and returns the event that describes
    the result.

    `build` makes the model, `data` is a Dataset or arrays (x, y) or (x, y, x_test, y_test);
    without them the config names both. Without `comm` the ranks are those that mpirun has started.
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
        self.step, self.skipped = 0, 0
        self.stopping = self._wants_to_stop = False
        self.agreed = False  # the error that is raised is one that all ranks know of
        self._in_step = self._updating = self._closed = False
        parts = prepared(config, build, data, self.comm)
        self.dataset, self.task, self.standardiser = parts.dataset, parts.task, parts.standardiser
        self.train, self.test = parts.train, parts.test
        self.total_steps, self.factor = parts.steps, parts.factor
        self.model, self.loss, self.on = self.task.model, self.task.loss, self.task.on
        self.strategy = self._built(self._wanted(parts))
        self.optimizer = self.strategy.optimizer
        self._clock = Stopwatch()

    def _built(self, wanted: Job) -> Strategy:
        """What this rank runs. What cannot be built, no rank can build: one of them says so."""
        try:
            return plan.build(self.config, self.comm, wanted)
        except ValueError as error:
            self.comm.agree(error)
            raise

    def together(self, f: Callable[[], T]) -> T:
        """Does what may fail on some ranks only, and then fails on all."""
        self.agreed = True
        result = together(self.comm, f)
        self.agreed = False
        return result

    @property
    def is_first(self) -> bool:
        """Whether it is this rank that prints and saves."""
        return self.comm.rank == 0

    def _wanted(self, parts: Prepared) -> Job:
        """What is to be trained, and beside it its twin if there is one."""
        wishes = Wishes(self._rate, lambda: self._wants_to_stop, self.total_steps)
        tasks = [task for task in (parts.task, parts.twin) if task is not None]
        made = partial(builders.optimizer, self.config)
        main, *twins = (
            Job(task, order, made, wishes, self._tell)
            for task, order in zip(tasks, parts.order, strict=True)
        )
        return main._replace(twin=twins[0] if twins else None)

    def _rate(self, step: int) -> float:
        """The learning rate of a step; who asks is about to move parameters."""
        self._updating = True
        return self.config.lr * self.factor(step)

    def _tell(self, event: Event) -> None:
        """Shows an event while `fit` runs."""
        self._out.event(event)

    # ---- training

    def fit(self, report: Report | None = None) -> Event:
        """Train, evaluating after each epoch; save, and describe what came out."""
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
        """Where events go: one rank tells them. If it cannot, all ranks fail."""
        return self.together(self._opened)

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
        self.close()
        self.together(self._save)
        result = {
            "event": "stopped" if self.stopping else "done",
            **metrics,
            "seconds": round(time.perf_counter() - began, 4),
            "ranks": self.comm.size,
            "layout": {**self.strategy.mesh.axes, "pp": 1, "tp": 1},
            **self.strategy.outcome(),
            "parameters_sha256": parameters_sha256(self.model),
        }
        out.event(result)
        return result

    def _epochs(self, out: Report) -> Event:
        """All epochs that are wanted; the metrics of the last one."""
        for epoch in itertools.count(1):
            train, test = self._epoch(epoch - 1, out), self.evaluate()
            self._hear()
            self._check_finite("test loss", test.mean_loss)
            metrics = self._metrics(train, test)
            out.event({"event": "epoch", "epoch": epoch, **metrics})
            if self._is_over:
                break
        return {**metrics, "epochs": epoch}

    def _save(self) -> None:
        if self.config.save and self.is_first:
            saving.save(self.model.state_dict(), self.config.save)

    def _rescue(self, error: Exception) -> None:
        """Saves what is trained after an error of this rank alone, if no rank can move it."""
        others = self.comm.size > 1
        torn = self._updating or (others and self._in_step)
        if self.step and not torn and (not others or plan.in_step(self.config, self.comm.size)):
            try:
                self._save()
            except Exception as lost:
                error.add_note(f"and what was trained is not saved: {lost}")

    def close(self) -> None:
        """Gives back what ranks share; every rank calls it. `fit` does, if all ranks end alike."""
        if not self._closed:
            self._closed = True
            self.strategy.close()

    @property
    def _is_over(self) -> bool:
        return self.step >= self.total_steps or self.stopping

    def stop(self) -> None:
        """End after the step under way, or the next: all ranks agree on it in a step."""
        self._wants_to_stop = True
        self.stopping = self.stopping or self.comm.size == 1

    def _hear(self) -> None:
        """Between two epochs all agree on a wish that came too late for the last step."""
        wishes = np.array([float(self._wants_to_stop)])
        self.comm.all_reduce(wishes, "doubling")
        self.stopping = self.stopping or bool(wishes[0])

    def _epoch(self, epoch: int, out: Report) -> Sums:
        """All steps of an epoch that are still wanted."""
        sums = Sums()
        self.model.train()
        self._clock.start()
        with closing(self.strategy.steps(self.train, epoch)) as steps:
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

    def _note(self, done: Stepped) -> Sums:
        """What a step has shown; a loss that is no number ends the run, on all ranks alike."""
        self._check_finite("loss", done.loss / max(done.samples, 1), 1)
        self.step, self.stopping = done.step, self.stopping or done.stop
        self.skipped += not done.updated
        return Sums(done.loss, 0, done.samples)

    def _check_finite(self, what: str, value: float, ahead: int = 0) -> None:
        """A loss is a number, at the last step or the one under way, or the run ends here."""
        if not math.isfinite(value):
            lr = self.config.lr * self.factor(self.step)
            less = f"--lr {lr / 10:g}" if math.isfinite(lr) else "another --lr-schedule"
            saved = "; nothing was saved" if self.config.save else ""
            raise DivergedError(
                f"the {what} became {value} at step {self.step + ahead} with learning rate {lr:g}; "
                f"try {less}, --clip-norm 1 or --lr-schedule warmup:100{saved}"
            )

    @no_grad()
    def evaluate(self) -> Sums:
        """Loss and accuracy on the test split; the model is left in evaluation mode."""
        self.model.eval()
        found = np.zeros(len(Sums._fields))
        quiet = np.errstate(over="ignore", invalid="ignore", divide="ignore")
        with quiet, closing(self.test.loads(0, self.strategy.share)) as loads:
            for load in loads:
                for batch in load.micro:
                    found += self._judge(batch)
        self.strategy.total(found)
        loss, correct, samples = found.tolist()
        return Sums(loss, int(correct), int(samples))

    def _judge(self, batch: data.Batch) -> Sums:
        scores = self.task.forward(batch.x, Pass(self.step, batch.samples))
        loss = self.loss(scores, batch.y).item()
        return Sums(loss, int((scores.numpy().argmax(1) == batch.y).sum()), len(batch.y))

    # ---- what it tells

    def describe(self) -> Event:
        """The run before its first step."""
        d = self.dataset
        return {
            "event": "start",
            "model": self.config.model,
            "parameters": sum(p.size for p in self.model.parameters()),
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
