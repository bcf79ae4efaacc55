"""Executor: carries out the program of a step on one rank, for any way of being parallel.

    F       a stage computes on a batch, or on an activation that was received
    B       its backward pass, from the loss or from a gradient that was received
    REDUCE  one backward pass is left: gradients are summed as they become final
    UPDATE  all sums are complete: parameters are updated

What differs between strategies is given to it:

    stages   parts of the model, each with a source for its input and a sink for its output
    sync     how gradients are summed over dp        (data/gradient_sync.py and others)
    update   what is done with the sums              (update.py)
    program  which operations a step consists of     (schedules/)
"""

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, NoReturn, Protocol, TypeAlias

import numpy as np

from nnmpi.autograd import Tensor
from nnmpi.data import Load
from nnmpi.kernels.progress_hook import set_progress_hook
from nnmpi.nn.parameter import Parameter
from nnmpi.nn.passes import LOCAL, BatchStats, Pass
from nnmpi.parallel.step.ports import Stage, run_stage
from nnmpi.parallel.step.state import StepResult, StepState
from nnmpi.parallel.step.update import Outcome
from nnmpi.schedules import Kind, Op, one_stage


class GradientSync(Protocol):
    """How gradients are summed over dp while the backward passes run."""

    def begin(self, step: int) -> None:
        """Starts a step: no parameter has a gradient."""

    def reduce(self, loss: Any, stop: bool) -> None:
        """All losses are known, and gradients become final from here on.

        `loss` is summed over the ranks, `stop` is agreed on.
        """

    def ready(self, p: Parameter) -> None:
        """The gradient of p is final."""

    def poll(self) -> None:
        """Called often during a backward pass: messages progress."""

    def finish(self) -> None:
        """Waits until all sums are complete."""


class Updater(Protocol):
    """What is done with the sums (see `Update`)."""

    def apply(self, step: int) -> Outcome: ...


class StepControl(NamedTuple):
    """What the trainer asks of the steps of a run."""

    lr: Callable[[int], float]  # the learning rate of a step
    stop: Callable[[], bool]  # whether to end the run after this step
    steps: int  # in the whole run


Program: TypeAlias = Callable[[int], list[Op]]
"""The operations of a step of so many micro-batches."""


def refuse(leaf: Tensor) -> NoReturn:
    """A gradient has arrived at a tensor that is no parameter of the model."""
    raise ValueError(
        f"the model uses a tensor of shape {leaf.shape} that requires a gradient and is none of "
        "its parameters, so it would be neither trained nor saved: make it an attribute of a "
        "module, as nn.Parameter"
    )


def _no_progress() -> None:
    """No message is under way."""


_NO_UPDATE = Outcome(0.0, False, False)
"""Of a program without UPDATE."""


class Plan(NamedTuple):
    """The program of a step, and the micro-batch that each stage goes back over last."""

    ops: list[Op]
    last_backward: dict[int, int]

    @classmethod
    def of(cls, ops: list[Op]) -> "Plan":
        return cls(ops, {op.stage: op.micro for op in ops if op.kind is Kind.B})


class Executor:
    """Carries out steps; it holds no counter and knows no other rank."""

    def __init__(
        self,
        stages: Sequence[Stage],
        sync: GradientSync,
        update: Updater,
        stop: Callable[[], bool],
        program: Program = one_stage,
        batch_stats: BatchStats = LOCAL,
    ) -> None:
        self._stages, self._sync, self._updater, self._stop = stages, sync, update, stop
        self._program, self._batch_stats = program, batch_stats
        uses = Counter(p for stage in stages for p in stage.module.parameters())
        self._parameters = {*uses}
        self._tied = {p: n for p, n in uses.items() if n > 1}  # used by n stages of this rank
        self._plans: dict[int, Plan] = {}
        self._do: dict[Kind, Callable[[Op], None]] = {
            Kind.F: self._forward,
            Kind.B: self._backward,
            Kind.REDUCE: self._reduce,
            Kind.UPDATE: self._update,
        }

    def run(self, load: Load, state: StepState, batches: int) -> StepResult:
        """One step, of an epoch of so many batches."""
        self._load, self._step = load, state.step
        self._live: dict[tuple[int, int], tuple[Tensor, Tensor]] = {}
        self._reducing, self._progress, self._outcome = False, _no_progress, _NO_UPDATE
        micro_batches = len(load.micro)
        if micro_batches not in self._plans:
            self._plans[micro_batches] = Plan.of(self._program(micro_batches))
        self._plan, self._uses_left = self._plans[micro_batches], dict(self._tied)
        for stage in self._stages:
            stage.begin(load)
        self._sync.begin(state.step)
        with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
            for op in self._plan.ops:
                self._do[op.kind](op)
        return StepResult(state.next(batches), len(load.rows), *self._outcome)

    def _forward(self, op: Op) -> None:
        stage = self._stages[op.stage]
        now = Pass(self._step, self._load.micro[op.micro].samples, self._batch_stats)
        self._live[op.stage, op.micro] = run_stage(*stage, op.micro, now)

    def _backward(self, op: Op) -> None:
        stage = self._stages[op.stage]
        self._input, root = self._live.pop((op.stage, op.micro))
        is_last = self._reducing and self._plan.last_backward[op.stage] == op.micro
        with set_progress_hook(self._progress):
            seed = stage.sink.seed(op.micro, root)
            root.backward(seed, on_leaf=self._final if is_last else None)
        stage.source.give_back(op.micro, self._input)

    def _reduce(self, op: Op) -> None:
        loss = sum(stage.sink.loss() for stage in self._stages)
        self._sync.reduce(loss, self._stop())
        self._reducing, self._progress = True, self._sync.poll

    def _final(self, leaf: Tensor) -> None:
        """The last backward pass of a stage is done with this leaf; others may use it too."""
        if isinstance(leaf, Parameter) and leaf in self._parameters:
            left = self._uses_left[leaf] = self._uses_left.get(leaf, 1) - 1
            if not left:
                self._sync.ready(leaf)
        elif leaf is not self._input:
            refuse(leaf)

    def _update(self, op: Op) -> None:
        self._sync.finish()
        self._outcome = self._updater.apply(self._step)
