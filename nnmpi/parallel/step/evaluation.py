"""Evaluation: a forward-only program over the stages of a rank, whose last sink sums metrics."""

from collections.abc import Callable, Sequence
from contextlib import closing
from typing import Any

import numpy as np

from nnmpi.autograd import Tensor, no_grad
from nnmpi.data import Load, Loader
from nnmpi.data.loader import Cut
from nnmpi.metrics import Sums
from nnmpi.nn.passes import Pass
from nnmpi.parallel.step.ports import Loss, Stage, run_stage
from nnmpi.schedules import forward_only


class Metrics:
    """The Output of the last stage: loss, correct predictions and samples, as sums."""

    def __init__(self, loss: Callable[[Tensor, Any], Tensor]) -> None:
        self._of, self.sums = loss, np.zeros(len(Sums._fields))

    def begin(self, load: Load) -> None:
        self._load = load

    def put(self, micro: int, y: Tensor) -> Tensor:
        labels = self._load.micro[micro].y
        correct = int((y.numpy().argmax(1) == labels).sum())
        self.sums += Sums(self._of(y, labels).item(), correct, len(labels))
        return y


@no_grad()
def evaluate(stages: Sequence[Stage], loader: Loader, cut: Cut, step: int) -> np.ndarray:
    """The fields of Sums over the samples that `cut` leaves to this rank, if its stage has them."""
    last = stages[-1].sink
    metrics = Metrics(last.loss_of) if isinstance(last, Loss) else None
    outputs = [*(stage.sink for stage in stages[:-1]), metrics or last]
    quiet = np.errstate(over="ignore", invalid="ignore", divide="ignore")
    with quiet, closing(loader.loads(0, cut)) as loads:
        for load in loads:
            for stage, output in zip(stages, outputs, strict=True):
                stage.source.begin(load)
                output.begin(load)
            for op in forward_only(len(load.micro)):
                now = Pass(step, load.micro[op.micro].samples)
                module, source, _ = stages[op.stage]
                run_stage(module, source, outputs[op.stage], op.micro, now)
    return np.zeros(len(Sums._fields)) if metrics is None else metrics.sums


def as_sums(found: np.ndarray) -> Sums:
    """The sums over all ranks."""
    loss, correct, samples = found.tolist()
    return Sums(loss, int(correct), int(samples))
