"""Evaluation: forward passes over a split, and the sums of what they show."""

from contextlib import closing

import numpy as np

from nnmpi.autograd import no_grad
from nnmpi.data import Batch, Loader
from nnmpi.data.loader import Cut
from nnmpi.metrics import Sums
from nnmpi.nn.passes import Pass
from nnmpi.parallel.executor import Task


@no_grad()
def evaluate(task: Task, loader: Loader, cut: Cut, step: int) -> np.ndarray:
    """The fields of Sums over the samples that `cut` leaves to this rank."""
    found = np.zeros(len(Sums._fields))
    quiet = np.errstate(over="ignore", invalid="ignore", divide="ignore")
    with quiet, closing(loader.loads(0, cut)) as loads:
        for load in loads:
            for batch in load.micro:
                found += _sums(task, batch, step)
    return found


def _sums(task: Task, batch: Batch, step: int) -> Sums:
    scores = task.forward(batch.x, Pass(step, batch.samples))
    loss = task.loss(scores, batch.y).item()
    return Sums(loss, int((scores.numpy().argmax(1) == batch.y).sum()), len(batch.y))


def as_sums(found: np.ndarray) -> Sums:
    """The sums over all ranks."""
    loss, correct, samples = found.tolist()
    return Sums(loss, int(correct), int(samples))
