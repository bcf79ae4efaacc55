"""Executor: carries out the program of a step on one rank, for any way of being parallel.

    F          a stage computes on a batch, or on an activation that was received
    B          its backward pass, from the loss or from a gradient that was received
    I, W       its two halves: the gradient of the input first, those of parameters later
    RECOMPUTE  the F before ran without recording: it runs again, from the same input
    REDUCE     backward passes are the last ones: gradients are summed as they become final
    UPDATE     all sums are complete: parameters are updated
    RECV SEND  a message between stages starts

What differs between strategies is given to it (the rules of this folder are in `__init__.py`):

    ports      stages of the model, sources and sinks of what they compute on  (channels.py)
    sync       how gradients are summed over dp        (replicas/gradient_sync.py and others)
    update     what is done with the sums              (update.py)
    programs   which operations a step and an evaluation consist of    (schedules/)
"""

from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from contextlib import closing, nullcontext
from functools import cache, partial
from itertools import chain
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from nnmpi.arrays import backend
from nnmpi.arrays.kernels import progress_hook
from nnmpi.autograd import Tensor, no_grad
from nnmpi.autograd.functional import tensor
from nnmpi.data import Load
from nnmpi.data.inputs import each, parts
from nnmpi.nn.parameter import Parameter
from nnmpi.nn.passes import Pass, ReplayStats
from nnmpi.parallel.recorder import NO_RECORDER, Do, Recorder, current_recorder
from nnmpi.parallel.step.channels import Ports
from nnmpi.parallel.step.outputs import Outputs
from nnmpi.parallel.step.ports import CHECKED_STEPS, PassState, Stage, forward, needing_gradients
from nnmpi.parallel.step.update import Outcome
from nnmpi.schedules.op import MESSAGES, Kind, Op


class GradientSync:
    """How gradients are summed while the backward passes run; this one sums nothing."""

    every_pass = False
    """Whether `begin_pass` and `ready` are called in every backward pass; else only `ready`, in the
    last one of each stage."""

    def begin(self, step: int) -> None:
        """Starts a step: no parameter has a gradient."""

    def begin_pass(self, stage: int) -> None:
        """A backward pass over the parameters of a stage begins."""

    def ready(self, p: Parameter) -> None:
        """The backward pass is done with p."""

    def reduce(self, loss: Any, request: float) -> None:
        """All losses are known: `loss` and `request` are summed over the ranks."""

    def poll(self) -> None:
        """Called often during a step: messages progress."""

    def finish(self) -> None:
        """Waits until all sums are complete."""


NO_SYNC = GradientSync()


class StepState(NamedTuple):
    """How far training has come before a step: the one counter that steps depend on.

    A checkpoint records it besides the entries of stores and optimizers.
    """

    step: int = 0  # steps made so far
    epoch: int = 0
    batch: int = 0  # within the epoch

    def next(self, batches: int) -> "StepState":
        """After the step, in an epoch of so many batches."""
        if self.batch + 1 < batches:
            return StepState(self.step + 1, self.epoch, self.batch + 1)
        return StepState(self.step + 1, self.epoch + 1, 0)


class StepResult(NamedTuple):
    """A step over `samples` samples: the sum of their losses, and what all ranks agreed on."""

    state: StepState  # after the step
    samples: int
    divisor: float  # what the mean of the losses divides their sum by
    loss: float
    request: float  # the sum of those of all ranks: from STOPS on, one wants to end the run
    updated: bool  # False if a number was not finite, and parameters were left as they are
    gradient_norm: float | None = None  # before clipping; None where no rank knows all of it
    is_followed: bool = False  # whether another step is made already


Program: TypeAlias = Callable[[int], list[Op]]
"""The operations of a step of so many micro-batches."""


class Programs(NamedTuple):
    """The programs of a rank.

    checked_steps   the steps at the start of an epoch in which outputs that are computed again are
                    compared with the first ones
    """

    step: Program
    evaluation: Program
    checked_steps: float = CHECKED_STEPS


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


OpHooks: TypeAlias = Iterable[tuple[Kind, Callable[[Do, Op], None]]]
"""Kinds of operations, and what carries one out by the first argument and does more around it."""


class Executor:
    """Carries out steps; it holds no counter and knows no other rank."""

    def __init__(
        self,
        ports: Ports,
        sync: GradientSync,
        update: Callable[[int], Outcome],
        request: Callable[[], float],
        programs: Programs,
        recorder: Recorder = NO_RECORDER,
        op_hooks: OpHooks = (),
    ) -> None:
        self._checked_steps, self._checked_until = programs.checked_steps, 0.0
        self._stages, self._channels, self.loss, self._batch_stats = ports
        ports_of = {s: (stage.source, stage.sink) for s, stage in self._stages.items()}
        self._ports = [*chain(*ports_of.values())]
        self._with_memory = {
            s: [p for p in ports_here if p.has_memory] for s, ports_here in ports_of.items()
        }
        self._sync, self._apply, self._request = sync, update, request
        self._recorder = recorder
        self._begins = [sync.begin] if recorder is NO_RECORDER else [recorder.begin, sync.begin]
        self._plan, self._states = StepPlan.of([], {}), dict[tuple[int, int], PassState]()
        self._progress = self._poll if self._channels.is_needed else sync.poll
        self._parameters = {p for stage in self._stages.values() for p in stage.module.parameters()}
        do: dict[Kind, Do] = {
            Kind.F: self._forward,
            Kind.B: self._backward,
            Kind.I: self._input_gradient,
            Kind.W: self._weight_gradients,
            Kind.RECOMPUTE: self._recompute,
            Kind.REDUCE: self._reduce,
            Kind.UPDATE: self._update,
            **dict.fromkeys(MESSAGES, self._channels.start),
        }
        do |= {kind: partial(hook, do[kind]) for kind, hook in op_hooks}
        self._do = {kind: recorder.recorded(kind.value, f) for kind, f in do.items()}
        self._plan_of = cache(lambda m: StepPlan.of(programs.step(m), self._do))
        do_evaluation = {**do, Kind.F: self._evaluate}
        self._evaluation_of = cache(
            lambda m: [(do_evaluation[op.kind], op) for op in programs.evaluation(m)]
        )

    def steps(
        self, loads: Iterable[Load], start: StepState, batches: int
    ) -> Generator[StepResult, None, None]:
        """A step for each batch from `start` on, of an epoch of so many."""
        state, self._checked_until = start, start.step + self._checked_steps
        for load in loads:
            result = self.run(load, state, batches)
            state = result.state
            yield result

    @np.errstate(over="ignore", invalid="ignore", divide="ignore")
    def run(self, load: Load, state: StepState, batches: int) -> StepResult:
        """One step, of an epoch of so many batches."""
        self._step = state.step
        self._plan, self._states = self._plan_of(len(load.micro)), {}  # none is in a stage yet
        self.begin(load)
        for begin in self._begins:
            begin(state.step)
        self._carry_out(self._plan.calls, self._progress)
        return StepResult(state.next(batches), len(load.rows), load.divisor, *self._outcome)

    def begin(self, load: Load) -> None:
        """The ports find the micro-batches of this step from here on."""
        self._load = load
        for port in self._ports:
            port.begin(load)

    @np.errstate(over="ignore", invalid="ignore", divide="ignore")
    def to_update(self, ops: Iterator[Op], first: int) -> Outcome:
        """Carries out operations up to the next UPDATE, where steps overlap: that of micro-batch i
        is `first` + i, and its load is begun in what is done around F."""

        def calls() -> Iterator[tuple[Do, Op]]:
            for op in ops:
                self._step = first + op.micro
                self._recorder.begin(self._step)
                yield self._do[op.kind], op
                if op.kind is Kind.UPDATE:
                    return

        self._carry_out(calls(), self._progress)
        return self._outcome

    @no_grad()
    @np.errstate(over="ignore", invalid="ignore", divide="ignore")
    def evaluate(self, loads: Generator[Load, None, None], step: int, outputs: Outputs) -> None:
        """Forward passes over batches; of the last stage `outputs` takes what they give."""
        self._step, self.loss.outputs = step, outputs
        with closing(loads):
            for load in loads:
                self.begin(load)
                calls = self._evaluation_of(len(load.micro))
                self._carry_out(calls, self._channels.poll)
                self._channels.sends.finish()  # else a fast stage computes ahead of a slow one

    def _carry_out(self, calls: Iterable[tuple[Do, Op]], poll: Callable[[], None]) -> None:
        tokens = progress_hook.set(poll), current_recorder.set(self._recorder)
        try:
            for do, op in calls:
                do(op)
        finally:
            progress_hook.reset(tokens[0])
            current_recorder.reset(tokens[1])

    def _poll(self) -> None:
        self._channels.poll()
        self._sync.poll()

    def _forward(self, op: Op) -> None:
        stage, stats = self._stages[op.stage], self._batch_stats
        x, recomputed = stage.source.take(op.micro), (op.stage, op.micro) in self._plan.recomputed
        state = self._states[op.stage, op.micro] = PassState(
            x, ReplayStats(stats) if recomputed else stats
        )
        with no_grad() if recomputed else nullcontext():
            root = self._root(stage, state, op.micro)
        if not recomputed:
            state.root = root
        elif self._step < self._checked_until:
            state.note(root)
        stage.sink.put(op.micro, root)

    def _recompute(self, op: Op) -> None:
        state = self._states[op.stage, op.micro]
        assert isinstance(state.stats, ReplayStats)
        state.stats.replay()
        state.root = self._root(self._stages[op.stage], state, op.micro)
        state.compare(op.stage)

    def _root(self, stage: Stage, state: PassState, micro: int) -> Tensor:
        load = self._load
        current = Pass(self._step, load.micro[micro].samples, state.stats, batch=len(load.rows))
        return stage.sink.root(micro, forward(stage.module, state.input, current))

    def _backward(self, op: Op) -> None:
        stage, state = self._stages[op.stage], self._states[op.stage, op.micro]
        seed = stage.sink.seed(op.micro, state.root)
        self._parameter_gradients(op, state, partial(state.root.backward, seed))
        if stage.source.has_memory:
            stage.source.give_back(op.micro, state.input)
        for port in self._with_memory[op.stage]:
            port.done(op.micro)

    def _input_gradient(self, op: Op) -> None:
        stage, state = self._stages[op.stage], self._states[op.stage, op.micro]
        seed = stage.sink.seed(op.micro, state.root)
        leaves = needing_gradients(state.input)
        if leaves and state.root.requires_grad:
            rest = state.root.backward(seed, until=leaves)
            assert rest is not None
            state.finish = rest.finish
        else:  # samples: there is nothing to compute before the gradients of parameters
            state.finish = partial(state.root.backward, seed)
        if stage.source.has_memory:
            stage.source.give_back(op.micro, state.input)

    def _weight_gradients(self, op: Op) -> None:
        state = self._states[op.stage, op.micro]
        self._parameter_gradients(op, state, state.finish)
        for port in self._with_memory[op.stage]:
            port.done(op.micro)

    def _parameter_gradients(self, op: Op, state: PassState, run: Callable[..., object]) -> None:
        """Computes them; the micro-batch is not needed any more."""
        self._input = state.input
        # each one is the last where steps overlap, and the plan of a step is empty (PipeDream)
        is_last = self._plan.last_backward.get(op.stage, op.micro) == op.micro
        if every_pass := self._sync.every_pass:
            self._sync.begin_pass(op.stage)
        if state.root.requires_grad:  # else the first stage has used none of its parameters
            run(on_leaf=self._ready if is_last or every_pass else None)
        del self._states[op.stage, op.micro]
        self._input = ()  # else the arrays of the last micro-batch stay until the next step

    def _evaluate(self, op: Op) -> None:
        stage, samples = self._stages[op.stage], self._load.micro[op.micro].samples
        x = stage.source.take(op.micro)
        y = forward(stage.module, x, Pass(self._step, samples))
        memory = {id(t.storage) for _, t in parts(x)}  # which may be used again before y is sent

        def apart(t: Tensor) -> Tensor:
            return tensor(t, on=backend.of(t.data)) if id(t.storage) in memory else t

        stage.sink.evaluate(op.micro, each(apart, y))
        if stage.source.has_memory:
            stage.source.done(op.micro)

    def _reduce(self, op: Op) -> None:
        self._sync.reduce(self.loss.loss(), self._request())

    def _ready(self, leaf: Tensor) -> None:
        """A backward pass is done with this leaf."""
        if isinstance(leaf, Parameter) and leaf in self._parameters:
            self._sync.ready(leaf)
        elif leaf not in {*needing_gradients(self._input)}:
            raise ValueError(
                f"the model uses a tensor of shape {leaf.shape} that requires a gradient and is "
                "none of its parameters, so it would be neither trained nor saved: make it an "
                "attribute of a module, as nn.Parameter"
            )

    def _update(self, op: Op) -> None:
        self._sync.finish()
        self._outcome = self._apply(self._step)
