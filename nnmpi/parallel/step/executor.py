"""Executor: carries out the program of a step on one rank, for any way of being parallel.

    F          a stage computes on a batch, or on an activation that was received
    B          its backward pass, from the loss or from a gradient that was received
    I, W       its two halves: the gradient of the input first, those of parameters later
    RECOMPUTE  the F before ran without recording: it runs again, from the same input
    REDUCE     backward passes are the last ones: gradients are summed as they become final
    UPDATE     all sums are complete: parameters are updated
    RECV SEND  a message between stages starts

What differs between strategies is given to it:

    stages     parts of the model, each with a source for its input and a sink for its output
    sync       how gradients are summed over dp        (data/gradient_sync.py and others)
    update     what is done with the sums              (update.py)
    program    which operations a step consists of     (schedules/)
    messages   what starts sends and receives          (pipeline/channels.py)
"""

from collections.abc import Callable, Mapping
from contextlib import nullcontext
from functools import partial
from typing import Any, NamedTuple, NoReturn, Protocol, TypeAlias

import numpy as np

from nnmpi.autograd import Tensor, no_grad
from nnmpi.data import Load
from nnmpi.kernels import progress_hook
from nnmpi.nn.parameter import Parameter
from nnmpi.nn.passes import LOCAL, BatchStats, Pass
from nnmpi.parallel.recorder import NO_RECORDER, Do, Recorder, current_recorder
from nnmpi.parallel.step.ports import (
    NO_MESSAGES,
    Messages,
    Stage,
    Tensors,
    forward,
    needing_gradients,
)
from nnmpi.parallel.step.recompute import Kept
from nnmpi.parallel.step.state import StepResult, StepState
from nnmpi.parallel.step.update import Outcome
from nnmpi.schedules import MESSAGES, Kind, Op, one_stage


class GradientSync:
    """How gradients are summed while the backward passes run; this one sums nothing."""

    def begin(self, step: int) -> None:
        """Starts a step: no parameter has a gradient."""

    def begin_pass(self, stage: int, is_last: bool) -> None:
        """A backward pass over the parameters of a stage begins; in the last one of a step they get
        their gradients for good."""

    def ready(self, p: Parameter) -> None:
        """The backward pass is done with p."""

    def reduce(self, loss: Any, stop: bool) -> None:
        """All losses are known.

        `loss` is summed over the ranks, `stop` is agreed on.
        """

    def poll(self) -> None:
        """Called often during a step: messages progress."""

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


_NO_UPDATE = Outcome(0.0, False, False)
"""Of a program without UPDATE."""


class StepPlan(NamedTuple):
    """The program of a step, and what follows from it."""

    calls: list[tuple[Do, Op]]  # what carries out each operation
    last_backward: dict[int, int]  # of each stage: the micro-batch that it goes back over last
    recomputed: set[tuple[int, int]]  # (stage, micro-batch)

    @classmethod
    def of(cls, ops: list[Op], do: Mapping[Kind, Do]) -> "StepPlan":
        return cls(
            [(do[op.kind], op) for op in ops],
            {op.stage: op.micro for op in ops if op.kind in (Kind.B, Kind.W)},
            {(op.stage, op.micro) for op in ops if op.kind is Kind.RECOMPUTE},
        )


class Live:
    """A micro-batch in a stage, between its forward and its backward pass."""

    __slots__ = ("finish", "input", "leaves", "root", "stats")

    def __init__(self, x: Tensors, stats: BatchStats) -> None:
        self.input, self.stats = x, stats
        self.leaves = needing_gradients(x)
        self.root: Tensor  # what the backward pass starts from
        self.finish: Callable[..., object]  # W, after I


class Executor:
    """Carries out steps; it holds no counter and knows no other rank."""

    def __init__(
        self,
        stages: Mapping[int, Stage],
        sync: GradientSync,
        update: Updater,
        stop: Callable[[], bool],
        program: Program = one_stage,
        batch_stats: BatchStats = LOCAL,
        messages: Messages = NO_MESSAGES,
        recorder: Recorder = NO_RECORDER,
    ) -> None:
        self._stages, self._sync, self._updater, self._stop = stages, sync, update, stop
        self._program, self._batch_stats, self._recorder = program, batch_stats, recorder
        self._messages = messages
        self._progress = sync.poll if messages is NO_MESSAGES else self._poll
        self._parameters = {p for stage in stages.values() for p in stage.module.parameters()}
        self._plans: dict[int, StepPlan] = {}
        do: dict[Kind, Do] = {
            Kind.F: self._forward,
            Kind.B: self._backward,
            Kind.I: self._input_gradient,
            Kind.W: self._weight_gradients,
            Kind.RECOMPUTE: self._recompute,
            Kind.REDUCE: self._reduce,
            Kind.UPDATE: self._update,
            **dict.fromkeys(MESSAGES, messages.start),
        }
        self._do = {kind: recorder.recorded(kind.value, f) for kind, f in do.items()}

    @np.errstate(over="ignore", invalid="ignore", divide="ignore")
    def run(self, load: Load, state: StepState, batches: int) -> StepResult:
        """One step, of an epoch of so many batches."""
        self._load, self._step = load, state.step
        self._recorder.begin(state.step)
        self._live: dict[tuple[int, int], Live] = {}
        self._reducing, self._outcome = False, _NO_UPDATE
        micro_batches = len(load.micro)
        if micro_batches not in self._plans:
            self._plans[micro_batches] = StepPlan.of(self._program(micro_batches), self._do)
        self._plan = self._plans[micro_batches]
        for stage in self._stages.values():
            stage.begin(load)
        self._sync.begin(state.step)
        tokens = progress_hook.set(self._progress), current_recorder.set(self._recorder)
        try:
            for do, op in self._plan.calls:
                do(op)
        finally:
            progress_hook.reset(tokens[0])
            current_recorder.reset(tokens[1])
        return StepResult(state.next(batches), len(load.rows), load.divisor, *self._outcome)

    def _poll(self) -> None:
        self._messages.poll()
        self._sync.poll()

    def _forward(self, op: Op) -> None:
        stage, stats = self._stages[op.stage], self._batch_stats
        x, recomputed = stage.source.take(op.micro), (op.stage, op.micro) in self._plan.recomputed
        live = self._live[op.stage, op.micro] = Live(x, Kept(stats) if recomputed else stats)
        with no_grad() if recomputed else nullcontext():
            root = self._root(stage, live, op.micro, live.stats)
        if not recomputed:
            live.root = root
        stage.sink.put(op.micro, root)

    def _recompute(self, op: Op) -> None:
        live = self._live[op.stage, op.micro]
        assert isinstance(live.stats, Kept)
        live.root = self._root(self._stages[op.stage], live, op.micro, live.stats.replayed())

    def _root(self, stage: Stage, live: Live, micro: int, stats: BatchStats) -> Tensor:
        now = Pass(self._step, self._load.micro[micro].samples, stats)
        return stage.sink.root(micro, forward(stage.module, live.input, now))

    def _backward(self, op: Op) -> None:
        stage, live = self._stages[op.stage], self._live[op.stage, op.micro]
        seed = stage.sink.seed(op.micro, live.root)
        self._parameter_gradients(op, live, partial(live.root.backward, seed))
        stage.source.give_back(op.micro, live.input)
        self._end(op)

    def _input_gradient(self, op: Op) -> None:
        stage, live = self._stages[op.stage], self._live[op.stage, op.micro]
        seed = stage.sink.seed(op.micro, live.root)
        if live.leaves and live.root.requires_grad:
            rest = live.root.backward(seed, until=live.leaves)
            assert rest is not None
            live.finish = rest.finish
        else:  # samples: there is nothing to compute before the gradients of parameters
            live.finish = partial(live.root.backward, seed)
        stage.source.give_back(op.micro, live.input)

    def _weight_gradients(self, op: Op) -> None:
        live = self._live[op.stage, op.micro]
        self._parameter_gradients(op, live, live.finish)
        self._end(op)

    def _parameter_gradients(self, op: Op, live: Live, compute: Callable[..., object]) -> None:
        self._leaves = {*live.leaves}
        is_last = self._reducing and self._plan.last_backward[op.stage] == op.micro
        self._sync.begin_pass(op.stage, is_last)
        if live.root.requires_grad:  # else the first stage has used none of its parameters
            compute(on_leaf=self._ready)

    def _end(self, op: Op) -> None:
        """The micro-batch is not needed any more."""
        del self._live[op.stage, op.micro]
        self._stages[op.stage].done(op.micro)

    def _reduce(self, op: Op) -> None:
        loss = sum(stage.sink.loss() for stage in self._stages.values())
        self._sync.reduce(loss, self._stop())
        self._reducing = True

    def _ready(self, leaf: Tensor) -> None:
        """A backward pass is done with this leaf."""
        if isinstance(leaf, Parameter) and leaf in self._parameters:
            self._sync.ready(leaf)
        elif leaf not in self._leaves:
            refuse(leaf)

    def _update(self, op: Op) -> None:
        self._sync.finish()
        self._outcome = self._updater.apply(self._step)
