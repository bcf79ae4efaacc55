"""Executor: carries out the list of a step's operations on one rank, for any kind of parallelism.

    F          forward pass of a unit, on a batch or on an activation that was received
    B          its backward pass, from the loss or from a gradient that was received
    I, W       the two halves of B: first the gradient of the input, later those of parameters
    RECOMPUTE  the forward pass again with autograd, because F ran without it
    NOTE       all losses of this rank are known
    AGREE      ranks agree on the sums of the step
    APPLY      parameters are updated
    RECV SEND  a message between stages starts

The sync (a GradientSync) carries out further operations on buckets of parameters, and the swapper
those on disk. A pass of a stage is a generator that stops between its units, or ends before the
last of them. Everything in which strategies differ is an argument (rules: `__init__.py`):

    ports      stages of the model, with their sources and sinks       (channels.py)
    sync       operations on buckets                   (replicas/bucket_sums.py and others)
    ends       AGREE and APPLY: the update of the parameters           (update.py)
    lists      the operations of a step and of an evaluation           (step_list/step.py)
"""

from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from functools import cache, partial
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np

from nnmpi.arrays import backend
from nnmpi.arrays.kernels import progress_hook
from nnmpi.autograd import Tensor, no_grad
from nnmpi.autograd.functional import tensor
from nnmpi.data import StepBatch
from nnmpi.data.inputs import each, parts
from nnmpi.nn.passes import Pass, ReplayStats
from nnmpi.nn.recompute import CHECKED_STEPS
from nnmpi.parallel.recorder import NO_RECORDER, Do, Recorder, current_recorder
from nnmpi.parallel.step.channels import Ports
from nnmpi.parallel.step.objective import Outputs
from nnmpi.parallel.step.stage import (
    ENDED,
    ForwardPass,
    PassState,
    by_tape,
    forward,
    outputs_of,
    run_stage,
)
from nnmpi.parallel.step.update import Ends, Outcome
from nnmpi.schedules.lists.step_list import PassFacts, StepList
from nnmpi.schedules.op import ADDS, FORWARD, PASSES, Kind, Op

if TYPE_CHECKING:
    from nnmpi.parallel.step.stage_lists import ReplayedStages
    from nnmpi.parallel.stores.unit_values import AskingUnit, Calls, UnitValues


class GradientSync:
    """The base of objects that carry out operations on buckets of gradients; it has none.

    ops    a dict: kind of operation -> the function that carries out an operation of this kind
    units  answers units that ask for their parameter values, if these take turns in memory (ZeRO 3)
    """

    ops: Mapping[Kind, Do] = {}
    units: "UnitValues | None" = None

    def begin(self, step: int) -> None:
        """Prepares for step `step`, and discards what is left of the last one."""

    def note(self, loss: Any, request: float) -> None:
        """Stores this rank's loss and request, so that later operations of the step sum them
        together with the gradients; called by NOTE, when the rank has no more losses to add."""

    def poll(self) -> None:
        """Makes progress with sums without waiting; called often in a step."""


NO_SYNC = GradientSync()


class StepState(NamedTuple):
    """The position of training before a step, which a checkpoint contains: steps made, the number
    of the epoch (from 0), and batches used in it. Steps depend on no other counter."""

    step: int = 0
    epoch: int = 0
    batch: int = 0

    def next(self, batches: int) -> "StepState":
        """Returns the state after this step, in an epoch of `batches` batches."""
        if self.batch + 1 < batches:
            return StepState(self.step + 1, self.epoch, self.batch + 1)
        return StepState(self.step + 1, self.epoch + 1, 0)


class StepResult(NamedTuple):
    """The result of a step, the same on all ranks.

    state              the position of training after the step
    samples            of the step's batch, on all ranks together
    divisor            the number by which the loss is divided to get its mean
    next_is_computed   True if the next step has already been computed

    The other fields are those of Outcome.
    """

    state: StepState
    samples: int
    divisor: float
    loss: float
    request: float
    updated: bool
    gradient_norm: float | None = None
    next_is_computed: bool = False


ListOf: TypeAlias = Callable[[int], StepList]
"""Returns the operations for a given number of micro-batches."""


class Lists(NamedTuple):
    """The lists of operations of a training step and of an evaluation, by number of micro-batches.

    checked_steps   in how many steps at the start of an epoch the outputs of recomputed forward
                    passes are compared with those of the first ones"""

    step: ListOf
    evaluation: ListOf
    checked_steps: float = CHECKED_STEPS


class StepPlan(NamedTuple):
    """The operations of a step with the functions that carry them out.

    units     with ZeRO 3: the passes of units, with the operations on values that they ask for,
              which `calls` leaves out
    passes    facts about the passes; none if steps overlap, as then they are not known before
    """

    calls: "Calls"
    units: "Sequence[AskingUnit]"
    passes: PassFacts


BeginPass: TypeAlias = Callable[[Op], Generator[None, None, None]]
"""A function that starts a pass of a stage: a generator that stops between units."""

OVER: Iterator[None] = iter(())
"""Stands for a pass that has ended before its last unit."""


PassHooks: TypeAlias = Iterable[tuple[Kind, Callable[[Do, Op], None]]]
"""hook(do, op) is called in place of do(op): in other memory, on other weights, or later."""


class Executor:
    """Carries out the steps of one rank, by running their lists of operations. It keeps no
    counters, and leaves communication to the objects that it is given.

    ends      a dict: kind of operation at the end of a step (AGREE, APPLY) -> its function
    request   returns this rank's request to stop or save
    hooks     (kind of pass, hook) pairs: hook(do, op) is called in place of do(op)
    passes    replays the passes of stages; None: autograd runs all of them
    """

    def __init__(
        self,
        ports: Ports,
        sync: GradientSync,
        ends: Ends,
        request: Callable[[], float],
        lists: Lists,
        recorder: Recorder = NO_RECORDER,
        hooks: PassHooks = (),
        passes: "ReplayedStages | None" = None,
    ) -> None:
        self._checked_steps, self._checked_until = lists.checked_steps, 0.0
        self._stages, self._channels, self.loss, self._batch_stats = ports
        self._passes, self._forward_of = passes, dict[int, ForwardPass]()
        for s, stage in self._stages.items():
            self._forward_of[s] = passes.lists[s].run if passes else partial(by_tape, stage)
        ports_of = {s: (stage.source, stage.sink) for s, stage in self._stages.items()}
        self._ports = [port for both in ports_of.values() for port in both]
        self._releases = {s: [p.done for p in ps if p.has_memory] for s, ps in ports_of.items()}
        self._sync, self._request, self._recorder = sync, request, recorder
        self._states = dict[tuple[int, int], PassState]()
        self._running = dict[tuple[int, int], Iterator[None]]()
        self._progress = self._poll if self._channels.is_needed else sync.poll
        do = self._functions(ends)
        do |= {kind: partial(hook, do[kind]) for kind, hook in hooks}
        self._do = {kind: recorder.recorded(kind.value, f) for kind, f in do.items()}
        self._plan = StepPlan([], [], PassFacts({}, frozenset()))
        self._plan_of = cache(lambda m: self._planned(lists.step(m)))
        # without the recorder: evaluations are not recorded
        of_evaluation: dict[Kind, Do] = {**do, Kind.F: partial(self._pass, self._evaluate)}
        self._evaluation_of = cache(lambda m: self._calls_of(lists.evaluation(m), of_evaluation))

    def _functions(self, ends: Ends) -> dict[Kind, Do]:
        """Returns the function that carries out each kind of operation."""
        passes = {
            Kind.F: self._forward,
            Kind.B: self._backward,
            Kind.I: self._input_gradient,
            Kind.W: self._weight_gradients,
            Kind.RECOMPUTE: self._recompute,
        }
        return {
            **{kind: partial(self._pass, begin) for kind, begin in passes.items()},
            **self._channels.ops,
            **self._sync.ops,
            Kind.NOTE: self._note,
            **{kind: partial(self._end, end) for kind, end in ends.items()},
        }

    def _planned(self, step: StepList) -> StepPlan:
        of_stages = {s: stage.units for s, stage in self._stages.items()}
        return StepPlan(*self._calls_of(step, self._do), PassFacts.of(step.ops, of_stages))

    def steps(
        self, loads: Iterable[StepBatch], start: StepState, batches: int
    ) -> Generator[StepResult, None, None]:
        """Yields each batch's StepResult, in an epoch of `batches` batches from `start` on."""
        state, self._checked_until = start, start.step + self._checked_steps
        for load in loads:
            result = self.run(load, state, batches)
            state = result.state
            yield result

    @np.errstate(over="ignore", invalid="ignore", divide="ignore")
    def run(self, load: StepBatch, state: StepState, batches: int) -> StepResult:
        """Makes one step on the batch `load`, from `state`, in an epoch of `batches` batches."""
        self._step = state.step
        self._plan, self._states, self._running = self._plan_of(len(load.micro)), {}, {}
        self.begin(load)
        self._recorder.begin(state.step)
        self._sync.begin(state.step)
        self._carry_out(self._plan.calls, self._plan.units)
        return StepResult(state.next(batches), len(load.rows), load.divisor, *self._outcome)

    def begin(self, load: StepBatch) -> None:
        """Hands the batch's micro-batches to the ports of each stage."""
        self._load = load
        for port in self._ports:
            port.begin(load)

    @np.errstate(over="ignore", invalid="ignore", divide="ignore")
    def to_update(self, ops: Iterator[Op], first: int) -> Outcome:
        """Carries out operations up to and including the next APPLY, and returns its outcome; for
        strategies such as PipeDream, whose steps overlap.

        The APPLY of micro-batch i belongs to step `first` + i. The caller passes the batch of each
        step to `begin` before its first forward pass.
        """

        def calls() -> Iterator[tuple[Do, Op]]:
            for op in ops:
                self._step = first + op.micro
                self._recorder.begin(self._step)
                yield self._do[op.kind], op
                if op.kind is Kind.APPLY:
                    return

        self._carry_out(calls())
        return self._outcome

    @no_grad()
    @np.errstate(over="ignore", invalid="ignore", divide="ignore")
    def evaluate(
        self, loads: Generator[StepBatch, None, None], step: int, outputs: Outputs
    ) -> None:
        """Runs forward passes over `loads`; `outputs` accumulates the outputs of the last stage,
        and `step` is the number of training steps so far."""
        self._step, self.loss.outputs, self._running, self._states = step, outputs, {}, {}
        if self._passes is not None:  # they need no memory now, and what is computed here does
            self._passes.free()
        with closing(loads):
            for load in loads:
                self.begin(load)
                self._carry_out(*self._evaluation_of(len(load.micro)))
                self._channels.sends.finish()  # else a fast stage runs ahead of a slow one

    def _calls_of(
        self, step: StepList, do: Mapping[Kind, Do]
    ) -> "tuple[Calls, Sequence[AskingUnit]]":
        """Returns the operations of a list, each with the function in `do` that carries it out;
        and, with ZeRO 3, the units that ask for values, whose operations are then left out."""
        units = self._sync.units
        if units is None:
            return [(do[op.kind], op) for op in step.ops], ()
        asking = {kind: partial(units.carry_out, do[kind]) for kind in PASSES}
        return units.of([(asking.get(op.kind) or do[op.kind], op) for op in step.ops])

    def _carry_out(
        self, calls: Iterable[tuple[Do, Op]], units: "Sequence[AskingUnit]" = ()
    ) -> None:
        if self._sync.units is not None:
            self._sync.units.begin(units)
        tokens = progress_hook.set(self._progress), current_recorder.set(self._recorder)
        try:
            for do, op in calls:
                do(op)
        finally:
            progress_hook.reset(tokens[0])
            current_recorder.reset(tokens[1])

    def _poll(self) -> None:
        self._channels.poll()
        self._sync.poll()

    def _pass(self, begin: BeginPass, op: Op) -> None:
        """Carries out one unit of a pass; if it cannot stop between units, the first one carries
        out all. `begin` starts a pass: it returns a generator that stops between units."""
        where = op.stage, op.micro
        running = self._running.pop(where, None) or begin(op)
        is_over, last = next(running, ENDED) is ENDED, self._is_last(op)
        if is_over is not last and (last or op.kind in ADDS):
            raise RuntimeError(f"{op}: the pass has not stopped where the list says")
        if not last:
            self._running[where] = OVER if is_over else running

    def _is_last(self, op: Op) -> bool:
        """True if this operation's unit is the last of a stage's pass."""
        return op.at == self._stages[op.stage].units[-1 if op.kind in FORWARD else 0]

    def _forward(self, op: Op) -> Generator[None, None, None]:
        stage, stats, where = self._stages[op.stage], self._batch_stats, (op.stage, op.micro)
        x, kind = stage.source.next_input(op.micro), self._plan.passes.kinds.get(where)
        if where in self._plan.passes.recomputed:
            self._states[where] = PassState(x, ReplayStats(stats), kind)
            self._forward_without_tape(op)
            return
        state = self._states[where] = PassState(x, stats, kind)
        state.run = yield from self._forward_of[op.stage](state, op.micro, self._current(op, state))
        stage.sink.put(op.micro, state.run.outputs)
        state.run.release()

    def _forward_without_tape(self, op: Op) -> None:
        """Runs the forward pass of a stage that is repeated before its backward pass."""
        stage, state = self._stages[op.stage], self._states[op.stage, op.micro]
        with no_grad():
            root = run_stage(stage, state, op.micro, self._current(op, state))
        outputs = [t.array for t in outputs_of(root)]
        if self._step < self._checked_until:
            state.note(outputs)
        stage.sink.put(op.micro, outputs)

    def _recompute(self, op: Op) -> Generator[None, None, None]:
        state = self._states[op.stage, op.micro]
        assert isinstance(state.stats, ReplayStats)
        state.stats.replay()
        state.run = yield from self._forward_of[op.stage](state, op.micro, self._current(op, state))
        state.compare(state.run.outputs, op.stage)
        state.run.release()

    def _current(self, op: Op, state: PassState) -> Pass:
        load = self._load
        return Pass(self._step, load.micro[op.micro].samples, state.stats, batch=len(load.rows))

    def _backward(self, op: Op) -> Generator[None, None, None]:
        stage, state = self._stages[op.stage], self._states.pop((op.stage, op.micro))
        yield from state.run.backward(stage.sink.seeds(op.micro, state.run.outputs))
        if stage.source.has_memory:
            stage.source.give_back(op.micro, state.input)
        for release in self._releases[op.stage]:
            release(op.micro)

    def _input_gradient(self, op: Op) -> Generator[None, None, None]:
        stage, state = self._stages[op.stage], self._states[op.stage, op.micro]
        yield from state.run.first_half(stage.sink.seeds(op.micro, state.run.outputs))
        if stage.source.has_memory:
            stage.source.give_back(op.micro, state.input)

    def _weight_gradients(self, op: Op) -> Generator[None, None, None]:
        state = self._states.pop((op.stage, op.micro))
        yield from state.run.second_half()
        for release in self._releases[op.stage]:
            release(op.micro)

    def _evaluate(self, op: Op) -> Generator[None, None, None]:
        stage, samples = self._stages[op.stage], self._load.micro[op.micro].samples
        x = stage.source.next_input(op.micro)
        y = forward(stage.module, x, Pass(self._step, samples))
        memory = {id(t.storage.root) for _, t in parts(x)}  # may be reused before y is sent

        def apart(t: Tensor) -> Tensor:
            return tensor(t, on=backend.of(t.array)) if id(t.storage.root) in memory else t

        stage.sink.evaluate(op.micro, each(apart, y))
        if stage.source.has_memory:
            stage.source.done(op.micro)
        yield from ()

    def _note(self, op: Op) -> None:
        self._sync.note(self.loss.loss(), self._request())

    def _end(self, end: Callable[[int], Outcome | None], op: Op) -> None:
        """Carries out AGREE or APPLY, and keeps the outcome if it returns one."""
        if (outcome := end(self._step)) is not None:
            self._outcome = outcome
