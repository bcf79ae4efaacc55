"""Trainer: epochs of steps over a data set, evaluation, files and reports."""

import hashlib
import itertools
import math
import time
from collections.abc import Callable
from contextlib import closing, suppress
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from nnmpi import assemble, backend, data, saving
from nnmpi.autograd import Tensor, no_grad
from nnmpi.autograd.functional import tensor
from nnmpi.config import Config
from nnmpi.data import Dataset, Loader, Standardiser
from nnmpi.nn import CrossEntropyLoss, Module
from nnmpi.nn.module import Pass, current_pass
from nnmpi.optim import clip_grad_norm, schedule
from nnmpi.report import Event, LostOutputError, Report, check_log


class Sums(NamedTuple):
    """Metrics as sums and a count, so that they add up over batches of any size."""

    loss: float = 0.0
    correct: int = 0
    samples: int = 0

    def plus(self, other: "Sums") -> "Sums":
        """Both together."""
        return Sums(
            self.loss + other.loss, self.correct + other.correct, self.samples + other.samples
        )

    @property
    def mean_loss(self) -> float:
        """Loss per sample."""
        return self.loss / max(self.samples, 1)

    @property
    def accuracy(self) -> float:
        """The share of samples that were right."""
        return self.correct / max(self.samples, 1)


class DivergedError(ArithmeticError):
    """The loss is no longer a number."""


class Stopwatch:
    """Samples per second of training steps alone: neither start-up nor the first step count."""

    def __init__(self) -> None:
        self.seconds, self.samples, self._warm = 0.0, 0, False

    def start(self) -> None:
        """Training goes on from here."""
        self._since = time.perf_counter()

    def lap(self, samples: int) -> None:
        """A step over so many samples has ended."""
        now = time.perf_counter()
        if self._warm:
            self.seconds += now - self._since
            self.samples += samples
        self._warm, self._since = True, now

    @property
    def rate(self) -> float:
        """Samples per second so far; 0 before the second step."""
        return self.samples / self.seconds if self.seconds else 0.0


class Trainer:
    """One run. `fit` trains and returns the event that describes the result.

    `build` makes the model, `data` is a Dataset or arrays (x, y) or
    (x, y, x_test, y_test); without them the config names both.
    """

    def __init__(
        self,
        config: Config,
        build: Callable[[], Module] | None = None,
        data: Dataset | tuple[Any, ...] | None = None,
    ) -> None:
        if build is not None:
            config = replace(config, model=getattr(build, "__name__", type(build).__name__))
        self.config = config
        if config.save:
            saving.check_target(config.save)
        if config.log:
            archive = config.data.removeprefix("npz:") if "npz" in config.data else None
            check_log(config.log, {"save": config.save, "load": config.load, "data": archive})
        self.on = backend.get(config.device)
        self.dataset = assemble.dataset(config, data)
        self.model = assemble.model(config, build, self.on)
        assemble.check_fit(config, self.model, self.dataset, self.on)
        self.optimizer = assemble.optimizer(config, self.model)
        self.loss = CrossEntropyLoss()
        self.standardiser = Standardiser.of(self.dataset.train)
        self.train = self._loader(self.dataset.train, shuffle=True)
        self.test = self._loader(self.dataset.test, shuffle=False)
        steps = config.epochs * len(self.train)
        self.total_steps = steps if config.steps is None else min(steps, config.steps)
        self.factor = schedule.parse(config.lr_schedule, self.total_steps)
        self.step, self.stopping = 0, False
        self._clock = Stopwatch()

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
        with report or Report(self.config.log, self.config.quiet) as out:
            try:
                return self._fit(out)
            except BaseException as error:
                reason = str(error) or type(error).__name__
                with suppress(LostOutputError):
                    out.event({"event": "failed", "error": reason, "steps": self.step})
                raise

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
        self._save()
        result = {
            "event": "stopped" if self.stopping else "done",
            **metrics,
            "seconds": round(time.perf_counter() - began, 4),
            "ranks": 1,
            "layout": {"dp": 1, "pp": 1, "tp": 1},
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
        if self.config.save:
            saving.save(self.model.state_dict(), self.config.save)

    @property
    def _is_over(self) -> bool:
        return self.step >= self.total_steps or self.stopping

    def stop(self) -> None:
        """End after the step under way, as if it had been the last."""
        self.stopping = True

    def _epoch(self, epoch: int, out: Report) -> Sums:
        """All steps of an epoch that are still wanted."""
        sums = Sums()
        self.model.train()
        self._clock.start()
        with closing(self.train.epoch(epoch)) as batches:
            for batch in batches:
                new = self.train_step(batch)
                sums = sums.plus(new)
                self._clock.lap(len(batch.y))
                out.progress(self.step, self.total_steps, new.mean_loss)
                if self._is_over:
                    break
        out.end_progress()
        return sums

    def train_step(self, batch: data.Batch) -> Sums:
        """One step: forward, backward, update; waits for the device once, to read the loss."""
        config, opt = self.config, self.optimizer
        opt.lr = config.lr * self.factor(self.step)
        with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
            scores = self.forward(batch)
            loss = self.loss(scores, batch.y)
            opt.zero_grad()
            loss.backward()
            if config.clip_norm is not None:
                clip_grad_norm(self.model.parameters(), config.clip_norm)
            value = loss.item()
            self._check_finite("loss", value, 1)
            opt.step()
        self.step += 1
        return Sums(value * len(batch.y), 0, len(batch.y))

    def _check_finite(self, what: str, value: float, ahead: int = 0) -> None:
        """A loss is a number, at the last step or the one under way, or the run ends here."""
        if not math.isfinite(value):
            lr = self.optimizer.lr
            saved = "; nothing was saved" if self.config.save else ""
            raise DivergedError(
                f"the {what} became {value} at step {self.step + ahead} with learning rate {lr:g}; "
                f"try --lr {lr / 10:g}, --clip-norm 1 or --lr-schedule warmup:100{saved}"
            )

    def forward(self, batch: data.Batch) -> Tensor:
        """The scores of a batch, with randomness keyed by this step and these samples."""
        token = current_pass.set(Pass(self.step, batch.samples))
        try:
            scores: Tensor = self.model(tensor(batch.x, on=self.on))
        finally:
            current_pass.reset(token)
        return scores

    @no_grad()
    def evaluate(self) -> Sums:
        """Loss and accuracy on the test split; the model is left in evaluation mode."""
        self.model.eval()
        sums = Sums()
        quiet = np.errstate(over="ignore", invalid="ignore", divide="ignore")
        with quiet, closing(self.test.epoch(0)) as batches:
            for batch in batches:
                scores = self.forward(batch)
                loss = self.loss(scores, batch.y).item()
                right = int((scores.numpy().argmax(1) == batch.y).sum())
                sums = sums.plus(Sums(loss * len(batch.y), right, len(batch.y)))
        return sums

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
        }

    def _metrics(self, train: Sums, test: Sums) -> Event:
        return {
            "steps": self.step,
            "loss": train.mean_loss,
            "test_loss": test.mean_loss,
            "accuracy": test.accuracy,
            "samples_per_second": round(self._clock.rate, 1),
        }


def parameters_sha256(model: Module) -> str:
    """One hash of all parameters, whole and in the order of the state dictionary."""
    digest = hashlib.sha256()
    for p in model.parameters():
        digest.update(np.ascontiguousarray(backend.to_host(p.data)).tobytes())
    return digest.hexdigest()
