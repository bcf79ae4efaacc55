"""Evaluation: a forward-only program over the stages of a rank, whose last sink sums metrics."""

from collections.abc import Generator, Mapping
from contextlib import closing

import numpy as np

from nnmpi import backend
from nnmpi.autograd import Tensor, no_grad
from nnmpi.autograd.functional import tensor
from nnmpi.data import Load
from nnmpi.data.inputs import each, parts
from nnmpi.kernels import set_progress_hook
from nnmpi.nn.passes import Pass
from nnmpi.parallel.step.executor import Program
from nnmpi.parallel.step.objective import Objective
from nnmpi.parallel.step.ports import (
    NO_MESSAGES,
    Loss,
    Messages,
    Output,
    Stage,
    forward,
)
from nnmpi.schedules import Kind, forward_only


class Metrics:
    """The Output of the last stage: loss, metrics and samples, as sums."""

    def __init__(self, objective: Objective) -> None:
        self._of, self.sums = objective, objective.nothing()

    def begin(self, load: Load) -> None:
        self._load = load

    def root(self, micro: int, y: Tensor) -> Tensor:
        return y

    def put(self, micro: int, root: Tensor) -> None:
        self.sums += self._of.evaluate(root, self._load.micro[micro].y)


@no_grad()
def evaluate(
    objective: Objective,
    stages: Mapping[int, Stage],
    loads: Generator[Load, None, None],
    step: int,
    program: Program = forward_only,
    messages: Messages = NO_MESSAGES,
) -> np.ndarray:
    """The row of these samples (see Objective) if one of the stages is the last one; else zeros."""
    last, metrics = max(stages), Metrics(objective)
    outputs: dict[int, Output] = {s: stage.sink for s, stage in stages.items()}
    if isinstance(stages[last].sink, Loss):
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
    return metrics.sums


def _forward(stage: Stage, output: Output, load: Load, micro: int, step: int) -> None:
    x, now = stage.source.take(micro), Pass(step, load.micro[micro].samples)
    y = forward(stage.module, x, now)
    memory = {id(t.storage) for _, t in parts(x)}  # which may be used again before y is sent

    def apart(t: Tensor) -> Tensor:
        return tensor(t, on=backend.of(t.data)) if id(t.storage) in memory else t

    output.put(micro, output.root(micro, each(apart, y)))
    stage.source.done(micro)
