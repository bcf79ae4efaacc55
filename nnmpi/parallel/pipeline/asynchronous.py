"""AsynchronousStage: one stage of PipeDream, whose pipeline stays full from batch to batch.

    stage 0 of 3   F0 F1 F2 B0 UPDATE0 F3 B1 UPDATE1 F4 ...
    stage 2 of 3   F0 B0 UPDATE0 F1 B1 UPDATE1 F2 ...

A batch is one micro-batch and one step: it has a learning rate, a number and an UPDATE of its own.
So there is no step with a beginning and an end that an `Executor` could run: several are under way.
The pipeline is empty at the end of an epoch, or when all stages know that one of them wants to
stop: what the first stage has started by then is completed.
"""

import math
from collections.abc import Generator, Iterator, Sequence
from typing import Any

import numpy as np

from nnmpi.autograd import Tensor
from nnmpi.comm import Comm
from nnmpi.data import Batch, Load
from nnmpi.kernels import set_progress_hook
from nnmpi.nn.passes import Pass
from nnmpi.optim import Optimizer
from nnmpi.parallel.pipeline.channels import Channels
from nnmpi.parallel.pipeline.signals import Report, Signals
from nnmpi.parallel.pipeline.versions import VersionStore
from nnmpi.parallel.recorder import Recorder
from nnmpi.parallel.step.executor import StepControl, refuse
from nnmpi.parallel.step.ports import Stage, Tensors, forward, needing_gradients
from nnmpi.parallel.step.state import StepResult, StepState
from nnmpi.parallel.stores.local import fill_unused
from nnmpi.parallel.strategy import NotFiniteError
from nnmpi.schedules import Kind, Op, stream


class InFlight(Sequence[Batch]):
    """The batches of an epoch, of which those are in memory that a stage has begun and not done."""

    def __init__(self, loads: Iterator[Load], count: int) -> None:
        self._loads, self._count = loads, count
        self._begun, self._in_memory = 0, dict[int, Load]()

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, i: Any) -> Any:
        (batch,) = self._at(i).micro
        return batch

    def done(self, i: int) -> None:
        """Batch i is not needed any more."""
        del self._in_memory[i]

    def load(self, i: int) -> Load:
        """Batch i as a step; its ports find the others too, whose messages may be on their way."""
        return self._at(i)._replace(micro=self)

    def _at(self, i: int) -> Load:
        while self._begun <= i:
            self._in_memory[self._begun] = next(self._loads)
            self._begun += 1
        return self._in_memory[i]


class AsynchronousStage:
    """Runs epochs; with `vertical` all stages use the version that the first one had."""

    def __init__(
        self,
        stage: Stage,
        pp: Comm,
        channels: Channels,
        store: VersionStore,
        optimizer: Optimizer,
        control: StepControl,
        recorder: Recorder,
        vertical: bool,
    ) -> None:
        self._stage, self._store, self._optimizer = stage, store, optimizer
        self._number, self._stages = pp.rank, pp.size
        self._channels, self._signals = channels, Signals(pp, channels.sends, recorder)
        self._control, self._recorder, self._vertical = control, recorder, vertical
        self._parameters = {*stage.module.parameters()}
        self._is_empty = True

    def check_empty(self) -> None:
        """Raises ValueError if an epoch was left while batches were under way between stages."""
        if not self._is_empty:
            raise ValueError(
                "the steps of an epoch were left early, with batches under way between stages: "
                "take all steps of an epoch, or end the run"
            )

    def epoch(
        self, loads: Iterator[Load], start: StepState, batches: int
    ) -> Generator[StepResult, None, None]:
        """The steps from `start` to the end of an epoch of so many batches, or of the run."""
        self.check_empty()
        count = min(batches - start.batch, self._control.steps - start.step)
        self._last, self._first_step, self._stops = count - 1, start.step, False
        self._in_flight = InFlight(loads, count)
        self._live: dict[int, tuple[Tensors, Tensor]] = {}  # input and root
        self._reports: dict[int, Report] = {}
        self._stage.begin(self._in_flight.load(0))
        for micro in range(min(self._stages, count) if self._vertical else 0):
            self._store.keep(micro, self._store.newest)
        ops = stream(self._stages, self._number, lambda: self._last)
        state, micro = start, 0
        while micro <= self._last:
            with (
                np.errstate(over="ignore", invalid="ignore", divide="ignore"),
                set_progress_hook(self._channels.poll),
            ):
                self._run_to_update(ops)
            state, load = state.next(batches), self._in_flight.load(micro)
            report, stop = self._reports.pop(micro), self._stops and micro == self._last
            self._in_flight.done(micro)
            self._is_empty = self._stages == 1 or micro == self._last
            yield StepResult(state, len(load.rows), load.divisor, report.loss, stop, True)
            micro += 1

    def _run_to_update(self, ops: Iterator[Op]) -> None:
        """The ops up to the next UPDATE."""
        for op in ops:
            self._recorder.begin(self._first_step + op.micro)
            began = self._recorder.now()
            match op.kind:
                case Kind.F:
                    self._forward(op.micro)
                case Kind.B:
                    self._backward(op.micro)
                case Kind.UPDATE:
                    self._update(op.micro)
                case _:
                    self._signals.start(op)
                    self._channels.start(op)
            self._recorder.add(op.kind.value, began, op.micro, op.stage)
            if op.kind is Kind.UPDATE:
                return

    def _forward(self, micro: int) -> None:
        stage, store = self._stage, self._store
        wish = self._signals.wish(self._control.stop(), micro)
        load = self._in_flight.load(micro)
        stage.begin(load)
        if not self._vertical:
            store.keep(micro, store.newest)
        x = stage.source.take(micro)
        with store.version_of(micro):
            now = Pass(self._first_step + micro, load.rows)
            root = stage.sink.root(micro, forward(stage.module, x, now))
        stage.sink.put(micro, root)
        self._live[micro] = x, root
        if self._number == self._stages - 1:
            loss = float(stage.sink.loss())
            self._check_finite("loss", loss, micro)
            self._reports[micro] = Report(loss, wish)

    def _backward(self, micro: int) -> None:
        stage = self._stage
        report = self._signals.report(self._reports.get(micro), micro)
        self._reports[micro] = report
        if report.stop and not self._stops:  # the first stage has started on so many
            self._stops, self._last = True, min(self._last, micro + self._stages - 1)
        x, root = self._live.pop(micro)
        self._store.begin()

        known = {*self._parameters, *needing_gradients(x)}

        def check(leaf: Tensor) -> None:
            if leaf not in known:
                refuse(leaf)

        seed = stage.sink.seed(micro, root)
        if root.requires_grad:  # else the first stage has used none of its parameters
            root.backward(seed, on_leaf=check)
        stage.source.give_back(micro, x)
        stage.done(micro)
        self._store.release(micro)

    def _update(self, micro: int) -> None:
        """The next version of the weights, by the gradient of one micro-batch."""
        store, optimizer = self._store, self._optimizer
        fill_unused(store.parameters)
        squares = float(store.squares([(0, len(store.flat_grad))]))
        self._check_finite("squared norm of the gradient", squares, micro)
        optimizer.lr = self._control.lr(self._first_step + micro)
        with store.next_version():
            optimizer.step()
        following = micro + self._stages  # the first stage starts on it after this update
        if self._vertical and following <= self._last:
            store.keep(following, store.newest)

    def _check_finite(self, what: str, value: float, micro: int) -> None:
        """Raises NotFiniteError: other stages go on, so none of them could skip this step too."""
        if not math.isfinite(value):
            step = self._first_step + micro
            lr = self._control.lr(step)
            raise NotFiniteError(
                f"stage {self._number}: the {what} became {value} at step {step + 1} with learning "
                f"rate {lr:g}, and pipedream cannot skip a step; try a smaller --lr or "
                "--lr-schedule warmup:100"
            )
