"""ServerClient: a worker of a parameter server, which pushes gradients at its own pace.

Each worker iterates over an endless sequence of batches, epoch after epoch, and takes its part of
each. If workers do not wait for each other, a fast one advances further than a slow one. An epoch
ends after as many pushes as N equally fast workers would make, so a run uses the same number of
samples at any speeds. But a fast worker has then used parts of later batches, and the slow worker's
parts of earlier batches are not used.
"""

from collections.abc import Generator
from contextlib import closing
from typing import Any, TypeAlias

import numpy as np

from nnmpi.addons.averaging.means import average_buffers
from nnmpi.addons.servers.exchange import Purpose, Reply, RequestChannel, WorkerRequest
from nnmpi.addons.servers.strategy import EpochProgress, ServerStrategy, steps_ahead
from nnmpi.arrays import backend
from nnmpi.data import Loader, StepBatch
from nnmpi.data.loader import BatchCut, BatchSplit
from nnmpi.nn.passes import LOCAL, BatchStats
from nnmpi.parallel.arrangement.flat_buffer import STOPS
from nnmpi.parallel.batch_stats import Synced
from nnmpi.parallel.executor_strategy import executor_of, slowed
from nnmpi.parallel.layout import Layout
from nnmpi.parallel.recorder import Timed
from nnmpi.parallel.step.executor import GradientSync, StepResult, StepState
from nnmpi.parallel.step.objective import Outputs
from nnmpi.parallel.step.update import Ends, Outcome
from nnmpi.parallel.stores.local import LocalStore, fill_unused
from nnmpi.parallel.strategy import TrainSpec, WorkerPosition
from nnmpi.schedules.op import Kind

Batches: TypeAlias = Generator[tuple[StepState, StepBatch], None, None]


class LocalGradient(GradientSync):
    """The GradientSync of a worker: the gradient stays in the store, from where it is pushed to the
    servers; the update does nothing."""

    def __init__(self, store: LocalStore) -> None:
        self._store = store
        self.ops = {
            Kind.SUM: lambda op: fill_unused(store.parameters),
            Kind.FINISH: lambda op: None,  # servers sum gradients, after the step
        }

    def begin(self, step: int) -> None:
        self._store.begin()

    def note(self, loss: Any, request: float) -> None:
        self._loss, self._request = loss, request

    @property
    def ends(self) -> Ends:
        """AGREE and APPLY of a worker return the outcome only: servers update."""
        return {Kind.AGREE: lambda step: None, Kind.APPLY: self.apply}

    def apply(self, step: int) -> Outcome:
        """Returns the Outcome of a step with the loss of this worker's samples."""
        return Outcome(backend.to_float(self._loss), self._request, True)


def worker_parts(
    layout: Layout, spec: TrainSpec, store: LocalStore
) -> tuple[LocalGradient, BatchStats]:
    """Returns the GradientSync and the BatchNorm statistics of a worker: those of its own samples,
    or of all workers if they make each step together."""
    dp = layout.axis["dp"]
    together = steps_ahead(spec.arrangement.config) == 0 and dp.size > 1
    return LocalGradient(store), Synced(dp) if together else LOCAL


class ServerClient(ServerStrategy):
    """The strategy of a worker: it pushes gradients to the servers, and gets new parameters."""

    def __init__(self, layout: Layout, spec: TrainSpec) -> None:
        super().__init__(layout, spec)
        config = spec.arrangement.config
        dp = layout.axis["dp"]
        self._recorder = spec.recorder
        gradient, stats = worker_parts(layout, spec, self._store)
        sync, stats = slowed(config, dp.rank, dp.size, gradient, stats)
        self._executor = executor_of(layout, spec, sync, gradient.ends, stats)
        split = BatchSplit(config.micro_batches, dp.size, dp.rank)
        # batch statistics of no samples do not exist, and here no other worker contributes to them
        self._cut: BatchCut = (
            split if self._synchronous else lambda rows: [part for part in split(rows) if len(part)]
        )
        self._channel = RequestChannel(layout, self._store, self._slices)
        self._batches: Batches | None = None
        if self._next_steps:
            self._set_position(self._next_steps[dp.rank])

    def steps(self, loader: Loader, start: StepState) -> Generator[StepResult, None, None]:
        """Makes this worker's steps in an epoch that begins at `start`; yields the results of all
        workers' steps, as the servers report them."""
        self._check_batches(loader)
        if self._batches is None:
            position = start if self.position is None else self.position.next
            self._batches = _endless(loader, position, self._cut)
        try:
            with closing(self._epoch(self._batches, loader, start)) as steps:
                yield from self.traffic.counted(steps, loader)
                yield from steps
        except Exception:  # `close` is not called after an error of one rank
            self._batches.close()
            raise

    def _epoch(
        self, batches: Batches, loader: Loader, start: StepState
    ) -> Generator[StepResult, None, None]:
        progress = EpochProgress(start, len(loader), self.layout.workers)
        reply = self._channel.ask(WorkerRequest(Purpose.START))
        while reply.go:
            state, load = next(batches)
            if not self._synchronous:
                self._set_position(state.next(len(loader)))
            reply = self._push(load, state, len(loader), reply.stop)
            if reply.go:
                yield from progress.results(reply.totals)
        stop = reply.stop or self._control.request() >= STOPS
        reply = self._channel.ask(WorkerRequest(Purpose.DONE, stop=stop))
        if not self._synchronous:
            average_buffers(self.layout.axis["dp"], self._task.model)
        yield from progress.results(reply.totals, ended=True, stop=reply.stop)

    def _set_position(self, state: StepState) -> None:
        """Records the position of this worker's next step, for checkpoints."""
        self.position = WorkerPosition(self.layout.axis["dp"].rank, self.layout.workers, state)

    def _push(self, load: StepBatch, state: StepState, batches: int, stop: bool) -> Reply:
        """Computes the gradient of a batch, or zeros without samples, and pushes it to the servers;
        returns their reply. `stop` is True if they have replied that some rank wants to end the
        run."""
        samples, loss = sum(len(batch.samples) for batch in load.micro), 0.0
        divisor = sum(self._task.objective.loss.divisor(batch.y) for batch in load.micro)
        if load.micro:
            loss = self._executor.run(load, state, batches).loss
        else:
            self._store.begin()
        with np.errstate(over="ignore", invalid="ignore"):
            gradient, xp = self._store.flat_grad, self._store.on.xp
            # synchronous servers take the norm of the summed gradient themselves
            squares = 0.0 if self._synchronous else float(xp.dot(gradient, gradient))
        stop = stop or self._control.request() >= STOPS
        with Timed(self._recorder, "exchange"):
            return self._channel.ask(
                WorkerRequest(Purpose.PUSH, samples, divisor, loss, stop, squares)
            )

    def evaluate(self, loader: Loader, step: int, outputs: Outputs) -> None:
        dp = self.layout.axis["dp"]
        self._executor.evaluate(loader.loads(0, BatchSplit(1, dp.size, dp.rank)), step, outputs)
        self._sum(outputs)

    def finish(self) -> dict[str, Any]:
        self._end_batches()
        return super().finish()

    def close(self) -> None:
        self._end_batches()
        super().close()

    def _end_batches(self) -> None:
        """Closes the batches; the next epoch opens them at the worker's position."""
        if self._batches is not None:
            self._batches.close()
            self._batches = None


def _endless(loader: Loader, start: StepState, cut: BatchCut) -> Batches:
    """Yields (state, batch) for the batches of all epochs from the state `start` on, where state is
    the position before the step on the batch. `cut` returns this worker's part of a batch."""
    state = start
    while True:
        with closing(loader.loads(state.epoch, cut, state.batch)) as loads:
            for load in loads:
                yield state, load
                state = state.next(len(loader))
