"""Trainer: epochs of steps over a data set, evaluation, files and reports."""

import hashlib
import itertools
import math
import time
from collections.abc import Callable
from contextlib import closing, suppress
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

import numpy as np

from nnmpi import assemble, backend, data, saving
from nnmpi.autograd import no_grad
from nnmpi.backend import Backend
from nnmpi.comm import Comm, has_launcher, job
from nnmpi.config import Config
from nnmpi.data import Dataset, Loader, Standardiser
from nnmpi.metrics import Stopwatch, Sums
from nnmpi.nn import CrossEntropyLoss, Module
from nnmpi.nn.passes import Pass
from nnmpi.optim import schedule
from nnmpi.parallel import plan
from nnmpi.parallel.strategy import Job
from nnmpi.parallel.worker import Stepped, Task, Wishes
from nnmpi.report import Event, LostOutputError, Report, Silence, check_log

T = TypeVar("T")


class DivergedError(ArithmeticError):
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
        self._build = build
        self.step, self.skipped = 0, 0
        self.stopping = self._wants_to_stop = False
        self.on = self._together(self._checked)
        self.dataset = self._in_turn(partial(assemble.dataset, config, data))
        self._together(self._assemble)
        self.strategy = plan.build(config, self.comm, self._job(self.task))
        self.optimizer = self.strategy.optimizer
        self._clock = Stopwatch()

    def _together(self, f: Callable[[], T]) -> T:
        """Does what may fail on some ranks only, and then fails on all."""
        error: Exception | None = None
        try:
            result = f()
        except Exception as caught:
            error = caught
        self.comm.agree(error)
        return result

    def _in_turn(self, f: Callable[[], T]) -> T:
        """The same, the first rank before the others if what it does is to fetch files."""
        if not self.config.download:
            return self._together(f)
        early = self._together(f if self.is_first else lambda: None)
        late = self._together(lambda: early if early is not None else f())
        assert late is not None
        return late

    def _checked(self) -> Backend:
        """The device, if what the config asks for can be."""
        config = self.config
        if config.save and self.is_first:
            saving.check_target(config.save)
        if config.log and self.is_first:
            archive = config.data.removeprefix("npz:") if "npz" in config.data else None
            check_log(config.log, {"save": config.save, "load": config.load, "data": archive})
        plan.check(config, self.comm.size)
        return backend.get(config.device)

    def _assemble(self) -> None:
        """What each rank makes alone."""
        config = self.config
        self.model = assemble.model(config, self._build, self.on)
        assemble.check_fit(config, self.model, self.dataset, self.on)
        self.loss = CrossEntropyLoss(reduction="sum")
        self.task = Task(self.model, self.loss, self.on)
        self.standardiser = Standardiser.of(self.dataset.train)
        self.train = self._loader(self.dataset.train, shuffle=True)
        self.test = self._loader(self.dataset.test, shuffle=False)
        steps = config.epochs * len(self.train)
        self.total_steps = steps if config.steps is None else min(steps, config.steps)
        self.factor = schedule.parse(config.lr_schedule, self.total_steps)

    @property
    def is_first(self) -> bool:
        """Whether it is this rank that prints and saves."""
        return self.comm.rank == 0

    def _job(self, task: Task) -> Job:
        c, build = self.config, self._build
        rate, total = lambda step: c.lr * self.factor(step), self.total_steps
        wishes = Wishes(rate, lambda: self._wants_to_stop, total)
        sample = np.zeros_like(self.dataset.train.x[:1], c.dtype)

        def twin() -> Job:
            return self._job(task._replace(model=assemble.model(c, build, self.on)))

        return Job(task, partial(assemble.optimizer, c), wishes, sample, self._tell, twin)

    def _tell(self, event: Event) -> None:
        """Shows an event while `fit` runs."""
        self._out.event(event)

    def _loader(self, split: data.Split, shuffle: bool) -> Loader:
        c = self.config
        return Loader(
            split,
            c.batch_size,
            standardiser=self.standardiser,
            dtype=c.dtype,
            seed=c.seed,
            shuffle=shuffle,
        )

    # ---- training

    def fit(self, report: Report | None = None) -> Event:
        """Train, evaluating after each epoch; save, and describe what came out."""
        if self.step:
            raise ValueError(
                f"a Trainer runs once, and this one has made {self.step} of its "
                f"{self.total_steps} steps; make another to go on"
            )
        with report or self.report() as out:
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
        return self._together(self._opened if self.is_first else Silence)

    def _opened(self) -> Report:
        return Report(self.config.log, self.config.quiet, launched=has_launcher())

    def _fit(self, out: Report) -> Event:
        began = time.perf_counter()
        out.event(self.describe())
        try:
            metrics = self._epochs(out)
        except DivergedError:
            raise
        except Exception:  # not Ctrl-C, which may have cut an update in two
            if self.step:
                self._save()
            raise
        self.strategy.close()
        self._together(self._save)
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
            self._check_finite("test loss", test.mean_loss)
            metrics = self._metrics(train, test)
            out.event({"event": "epoch", "epoch": epoch, **metrics})
            if self._is_over:
                break
        return {**metrics, "epochs": epoch}

    def _save(self) -> None:
        if self.config.save and self.is_first:
            saving.save(self.model.state_dict(), self.config.save)

    @property
    def _is_over(self) -> bool:
        return self.step >= self.total_steps or self.stopping

    def stop(self) -> None:
        """End after the step under way, or the next: all ranks agree on it in a step."""
        self._wants_to_stop = True
        self.stopping = self.stopping or self.comm.size == 1

    def _epoch(self, epoch: int, out: Report) -> Sums:
        """All steps of an epoch that are still wanted."""
        sums = Sums()
        self.model.train()
        self._clock.start()
        with closing(self.strategy.steps(self.train, epoch)) as steps:
            for done in steps:
                new = self._note(done)
                sums = sums.plus(new)
                self._clock.lap(done.samples)
                out.progress(self.step, self.total_steps, new.mean_loss)
                if self._is_over:
                    break
        out.end_progress()
        return sums

    def _note(self, done: Stepped) -> Sums:
        """What a step has shown; a loss that is no number ends the run, on all ranks alike."""
        self._check_finite("loss", done.loss / max(done.samples, 1), 1)
        self.step, self.stopping = done.step, done.stop
        self.skipped += not done.updated
        return Sums(done.loss, 0, done.samples)

    def _check_finite(self, what: str, value: float, ahead: int = 0) -> None:
        """A loss is a number, at the last step or the one under way, or the run ends here."""
        if not math.isfinite(value):
            lr = self.config.lr * self.factor(self.step)
            saved = "; nothing was saved" if self.config.save else ""
            raise DivergedError(
                f"the {what} became {value} at step {self.step + ahead} with learning rate {lr:g}; "
                f"try --lr {lr / 10:g}, --clip-norm 1 or --lr-schedule warmup:100{saved}"
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


def parameters_sha256(model: Module) -> str:
    """One hash of all parameters, whole and in the order of the state dictionary."""
    digest = hashlib.sha256()
    for p in model.parameters():
        digest.update(np.ascontiguousarray(backend.to_host(p.data)).tobytes())
    return digest.hexdigest()
