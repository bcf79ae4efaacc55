"""ServerStrategy: the base class of the strategies of workers and servers, with the store of
parameters, the optimizer, and the collectives at the start and the end of training."""

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import pairwise
from operator import sub
from typing import Any

from nnmpi.addons.servers.exchange import Totals, wait_all
from nnmpi.arrays.backend import Array
from nnmpi.collectives.step import chunk_start
from nnmpi.data import Loader
from nnmpi.data.loader import BatchSplit
from nnmpi.io.output.messages import EventFields
from nnmpi.nn.store import FlatStore, Shard, shards_of, spans_of
from nnmpi.options.config import Config
from nnmpi.parallel.agreement import gather_objects
from nnmpi.parallel.arrangement.arrangement import Arrangement
from nnmpi.parallel.layout import Layout
from nnmpi.parallel.model.whole import whole_model
from nnmpi.parallel.replicas.replicas import check_micro_batches, check_parts
from nnmpi.parallel.step.executor import StepResult, StepState
from nnmpi.parallel.step.objective import Outputs
from nnmpi.parallel.step.step_traffic import StepTraffic
from nnmpi.parallel.stores.local import LocalStore, StoreSpec
from nnmpi.parallel.strategy import TrainSpec, Undo, WorkerPosition
from nnmpi.parallel.wire import wire_of


def steps_ahead(config: Config) -> float:
    """Returns how many steps a worker (a rank that computes gradients) may be ahead of the slowest
    one before it waits: 0 with --sync bsp, --staleness with ssp, and inf with asp."""
    ahead: dict[str, float] = {"bsp": 0, "ssp": config.staleness, "asp": math.inf}
    return ahead[config.sync]


def layout_fields(a: Arrangement) -> dict[str, int | None]:
    """Returns the fields of the start event: `servers`, their number, and `steps_ahead`, None for
    any."""
    ahead = steps_ahead(a.config)
    return {"servers": a.servers, "steps_ahead": None if ahead == math.inf else int(ahead)}


class ServedStore(LocalStore):
    """The store of a server or worker, with buffers for all parameters, of which the optimizer
    updates the slice `own`, empty for a worker; `gradient` is that slice's for the next step."""

    def __init__(self, spec: StoreSpec, own: slice) -> None:
        super().__init__(spec)
        self.own, self.shards = own, shards_of([(own.start, own.stop)])
        self.gradient = self.flat_grad[own]

    def shard_gradient(self, shard: Shard) -> Array:
        return self.gradient[shard.packed]

    def gradient_bytes(self) -> int:
        """Returns the bytes of gradients: a worker's whole one, a server's slice."""
        return self.gradient.nbytes or super().gradient_bytes()

    def close(self) -> None:
        """Moves the parameters to an ordinary store, in which an optimizer updates all of them."""
        self.begin()
        FlatStore(self.parameters, self.flat.dtype, self.on)


def served(layout: Layout, spec: TrainSpec) -> tuple[ServedStore, list[slice]]:
    """Moves the parameters into a store of this rank; returns it, and the slice that each server
    updates."""
    trained = [p for p in spec.task.model.parameters() if p._requires_grad]
    n = spans_of([p.padded_size for p in trained])[-1][1]
    ends = [chunk_start(n, layout.servers, k) for k in range(layout.servers + 1)]
    slices = [slice(*bounds) for bounds in pairwise(ends)]
    part = slices[layout.all.rank - layout.workers] if layout.serves else slice(0, 0)
    of_rank, dtype = (spec.arrangement, layout.all.rank), trained[0].array.dtype
    made_from = StoreSpec(*of_rank, trained, dtype, spec.task.on, layout.axis["dp"])
    return ServedStore(made_from, part), slices


class ServerStrategy:
    """The base class of the strategies of workers and of parameter servers.

    position   how far this rank is in its data, if workers may be at different steps; None
               otherwise
    last       None: the last step cannot be undone if a rank is lost
    """

    position: WorkerPosition | None = None
    last: Undo | None = None

    def __init__(self, layout: Layout, spec: TrainSpec) -> None:
        config = spec.arrangement.config
        self.layout, self._task, self._control = layout, spec.task, spec.control
        self._arrangement = spec.arrangement
        self._micro_batches, self._bound = config.micro_batches, steps_ahead(config)
        self._synchronous = self._bound == 0
        self._next_steps = () if self._synchronous else spec.next_steps
        self._store, self._slices = served(layout, spec)
        self.optimizer = spec.optimizer(self._store.parameters)
        self.full_state = whole_model(spec.part, layout.all)
        self.traffic = StepTraffic(layout, spec.arrangement)
        self._staleness: Sequence[Counter[int]] = ()  # counts for each worker, on a server

    def describe(self) -> dict[str, Any]:
        return dict(layout_fields(self._arrangement))

    def _check_batches(self, loader: Loader) -> None:
        """Raises OneSampleError on all ranks if a part is too small for BatchNorm."""
        workers, parts, steps = self.layout.workers, self._micro_batches, self._control.steps()
        if self._synchronous:
            check_micro_batches(self._task.model, loader, steps, parts)
            return
        check_parts(  # a worker sees only its own samples
            self._task.model,
            loader,
            min(workers * steps, steps + self._bound + 1),  # the most that a worker may reach
            [BatchSplit(parts, workers, r) for r in range(workers)],
            f"{workers} x {parts} parts (workers x micro-batches)",
            "fewer workers, another --batch-size or --sync bsp",
        )

    def _sum(self, outputs: Outputs) -> None:
        """Sums results over all ranks; those that wait sleep, for others to evaluate."""
        comm = self.layout.all
        outputs.add_up(comm, lambda row: wait_all(comm.system, [comm.start(row, "doubling")]))

    def finish(self) -> dict[str, Any]:
        """Copies the model of worker 0 to all ranks; returns the first server's counts:
        {"staleness": {worker: {staleness: number of gradients}}}."""
        comm = self.layout.all
        wire = wire_of(comm, self._task.on)
        wire.broadcast(self._store.flat)  # worker 0 has pulled the newest parameters with DONE
        for buffer in self._task.model.buffers():
            wire.broadcast(buffer._array)
        counters = gather_objects(comm, self._staleness)[self.layout.workers]
        staleness = {
            str(w): {str(s): n for s, n in sorted(counts.items())}
            for w, counts in enumerate(counters)
        }
        return {"staleness": staleness}

    def leave(self) -> None:
        """Does nothing: no rank has state here that others need."""

    def close(self) -> None:
        self._store.close()
        self.layout.free()


class EpochProgress:
    """Makes the StepResults of an epoch from the totals that servers report, each of what was added
    since the last one. N pushes of N workers count as one step, whichever workers have made
    them."""

    def __init__(self, start: StepState, batches: int, workers: int) -> None:
        self._start, self._batches, self._workers = start, batches, workers
        self._totals, self._state = Totals(), start

    def results(
        self, totals: Totals, ended: bool = False, stop: bool = False
    ) -> Iterator[StepResult]:
        """Yields one StepResult for all pushes since the last call, and before it one without
        samples for each further skipped update. If the epoch has ended, a last step counts even if
        some workers have pushed nothing for it."""
        new, state = Totals(*map(sub, totals, self._totals)), self._state
        steps, rest = divmod(int(totals.pushes), self._workers)
        self._totals, self._state = totals, self._after(steps + (ended and rest > 0))
        for _ in range(int(new.skipped) - 1):
            yield StepResult(state, 0, 0.0, 0.0, False, False)
        samples = int(new.samples)
        yield StepResult(self._state, samples, new.divisor, new.loss, stop, new.skipped == 0)

    def _after(self, steps: int) -> StepState:
        epochs, batch = divmod(self._start.batch + steps, self._batches)
        return StepState(self._start.step + steps, self._start.epoch + epochs, batch)


FIELDS = EventFields(layout=layout_fields)
