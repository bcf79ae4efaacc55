"""Evaluation: a forward-only program over the stages of a rank, whose last sink sums metrics."""

from collections.abc import Generator, Mapping
from contextlib import closing

import numpy as np

from nnmpi import backend
from nnmpi.autograd import Tensor, no_grad
from nnmpi.autograd.functional import tensor
from nnmpi.data import Load
from nnmpi.kernels.progress_hook import set_progress_hook
from nnmpi.metrics import Sums
from nnmpi.nn.passes import Pass
from nnmpi.parallel.step.executor import Program
from nnmpi.parallel.step.ports import (
    NO_MESSAGES,
    Criterion,
    Loss,
    Messages,
    Output,
    Stage,
    forward,
)
from nnmpi.schedules import Kind, forward_only


class Metrics:
    """The Output of the last stage: loss, correct predictions and samples, as sums."""

    def __init__(self, loss: Criterion) -> None:
        self._of, self.sums = loss, np.zeros(len(Sums._fields))

    def begin(self, load: Load) -> None:
        self._load = load

    def root(self, micro: int, y: Tensor) -> Tensor:
        return y

    def put(self, micro: int, root: Tensor) -> None:
        labels = self._load.micro[micro].y
        self.sums += Sums(*self._of.evaluate(root, labels), len(labels))


@no_grad()
def evaluate(
    stages: Mapping[int, Stage],
    loads: Generator[Load, None, None],
    step: int,
    program: Program = forward_only,
    messages: Messages = NO_MESSAGES,
) -> np.ndarray:
    """The fields of Sums over these samples, if one of the stages is the last one; else zeros."""
    last = max(stages)
    sink = stages[last].sink
    metrics = Metrics(sink.loss_of) if isinstance(sink, Loss) else None
    outputs: dict[int, Output] = {s: stage.sink for s, stage in stages.items()}
    if metrics:
        outputs[last] = metrics
    quiet = np.errstate(over="ignore", invalid="ignore", divide="ignore")
    with quiet, set_progress_hook(messages.poll), closing(loads):
        for load in loads:
            for s, stage in stages.items():
                stage.source.begin(load)
                outputs[s].begin(load)
            for op in program(len(load.micro)):
                if op.kind is Kind.F:
                    _forward(stages[op.stage], outputs[op.stage], load, op.micro, step)
                else:
                    messages.start(op)
            messages.finish()  # else a fast stage would compute ahead of a slow one without end
    return np.zeros(len(Sums._fields)) if metrics is None else metrics.sums


def _forward(stage: Stage, output: Output, load: Load, micro: int, step: int) -> None:
    x, now = stage.source.take(micro), Pass(step, load.micro[micro].samples)
    y = forward(stage.module, x, now)
    if y.memory is x.memory:  # which may be used again before y is sent
        y = tensor(y, on=backend.of(y.data))
    output.put(micro, output.root(micro, y))
    stage.source.done(micro)


def as_sums(found: np.ndarray) -> Sums:
    """The sums over all ranks."""
    loss, correct, samples = found.tolist()
    return Sums(loss, int(correct), int(samples))
