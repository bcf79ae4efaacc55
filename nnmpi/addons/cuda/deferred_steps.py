"""DeferredSteps: steps on a GPU that the host does not wait for: it reads the loss and the norm of
a step during the next step.

    step i      F  B  APPLY ── loss, squares ──┐ copied to the host
    step i + 1  F ────────────────────── read ◄┘  B  APPLY

F and B are the forward and backward pass, APPLY is the update. The device itself decides how a step
is clipped, and whether it is skipped. The host needs to know that for the loss scale and the number
of the next update: it waits after it has launched F of the next step, which the device computes
meanwhile. If anything else, such as a checkpoint, reads the model or the result of a step before
the next step, the host waits at the end of the step, as on a CPU.

If there are several ranks, each must have the whole model, and sum gradients and losses on its
device. Their hosts agree on requests to stop or save, and on which parameters have a gradient,
without waiting for devices.

Sums over ranks are parts of a graph of the whole step, which all ranks capture together, and launch
in the same steps: NCCL asks for that. So each rank tells the others before which graphs it has:

    rank 0   graphs 1 of a batch of 8 ─┐                     ┌─ the whole step (1, 2): captured when
    rank 1   graphs 2 of a batch of 7 ─┴─ gathered by hosts ─┴─ it is first asked for, then launched
    rank 2   no graphs of its batch (0): no rank launches one, and all sum gradients behind them
"""

import math
from collections.abc import Callable, Container, Generator, Iterable
from itertools import count
from typing import Any

import numpy as np

from nnmpi.addons.cuda.capture import libraries_of
from nnmpi.arrays.backend import Array
from nnmpi.arrays.devices import CopyStream
from nnmpi.arrays.kernels.steps import decide_loop
from nnmpi.data import StepBatch
from nnmpi.nn.parameter import Parameter
from nnmpi.optim import Optimizer
from nnmpi.parallel.arrangement.arrangement import Arrangement
from nnmpi.parallel.arrangement.flat_buffer import LOSS, REQUEST, USED
from nnmpi.parallel.mesh import REPLICAS
from nnmpi.parallel.recorder import Do
from nnmpi.parallel.step.executor import Executor, PassHooks, StepResult, StepState
from nnmpi.parallel.step.update import Ends, Outcome, Update
from nnmpi.parallel.stores.local import LocalStore
from nnmpi.parallel.strategy import TrainSpec
from nnmpi.parallel.wire import Transfer, is_in_order, wire_of
from nnmpi.schedules.op import Kind, Op

UNREAD = Outcome(0.0, 0.0, True)
"""A placeholder for the outcome of a step that the host has not read yet."""

MOST_GRAPHS = 64
"""The most graphs of whole steps: one for each combination of the ranks' graphs of passes."""


class StepTail:
    """The end of a step on a device, behind the backward pass: sums gradients and losses over
    ranks, computes the norm of all gradients, and by it how the step is clipped and whether it is
    made. A graph of the whole step contains it, so the arrays are the same in all steps.

    by, shown      what `decide_loop` writes
    has_asked      True if the ranks have told each other which graphs they have
    is_launched    True if the graph of this step has computed it
    graphs         the numbers of graphs that this rank has given to passes so far
    """

    def __init__(self, store: LocalStore, most: float, request: Callable[[], float]) -> None:
        self._store, self._most, self._request = store, most, request
        self.has_asked = self.is_launched = False
        self.graphs, self._of_ranks = count(1), set[tuple[int, ...]]()
        self.by, self.shown = self._new()

    def _new(self) -> tuple[Array, Array]:
        xp = self._store.on.xp
        return xp.empty(2, self._store.updated_dtype), xp.empty(2, np.float64)

    def fits(self, trained: Container[Parameter]) -> bool:
        """True if a pass computes the gradients of all parameters: those of others are cleared
        behind the pass."""
        return all(p in trained for p in self._store.parameters)

    def agreed(self, number: int) -> tuple[int, ...]:
        """Tells the other ranks the number of the graphs of this rank's passes, or 0 if there are
        none, and its request to stop or save. Returns the numbers of all ranks; () if one is 0, or
        so many others were seen that this seems to be another one in each step."""
        dp, self.has_asked = self._store.dp, True
        rows = np.zeros((dp.size, 2))
        rows[dp.rank] = number, self._request()
        dp.all_gather(rows, "halving")
        numbers = tuple(int(n) for n, _ in rows.tolist())
        if 0 in numbers or (numbers not in self._of_ranks and len(self._of_ranks) == MOST_GRAPHS):
            return ()
        self._of_ranks.add(numbers)
        self._store.request = float(rows[:, 1].sum())
        return numbers

    def is_captured(self, by_this_rank: bool) -> bool:
        """True if all ranks have captured a step."""
        row = np.array([by_this_rank], float)
        self._store.dp.all_reduce(row, "doubling")
        return bool(row[0] == self._store.dp.size)

    @property
    def libraries(self) -> set[Any]:
        """The communicators of the library that sums over ranks."""
        return libraries_of(bucket.comm for bucket in self._store.buckets.all)

    @property
    def sums(self) -> bool:
        """True if there are several ranks."""
        return self._store.dp.size > 1

    def begin(self, loss: Array) -> None:
        """Begins to sum gradients over ranks, and `loss`, that of this one."""
        self._left, self._started = [*range(len(self._store.buckets.all))], list[Transfer]()
        if self.sums:
            self._store.scalars[...] = 0  # the ranks' hosts know the others
            self._store.scalars[LOSS] = loss

    def sum_final(self, final: Container[Parameter]) -> None:
        """Starts the sums of those buckets of which all gradients are final, and that of no bucket
        before a later one, as a step's list does."""
        store = self._store
        members = store.buckets.members
        while self._left and all(store.parameters[i] in final for i in members[self._left[-1]]):
            if (transfer := store.start(self._left.pop())) is not None:
                self._started.append(transfer)

    def compute(self, loss: Array) -> None:
        """Completes the sums; computes the decision into `by` and `shown`."""
        self.sum_final({*self._store.parameters})
        for transfer in self._started:
            transfer.wait()
        self._decide(self._store.scalars[LOSS] if self.sums else loss, self.by, self.shown)

    def computed(self, loss: Array) -> tuple[Array, Array]:
        """Returns the decision in new arrays."""
        by, shown = self._new()
        self._decide(loss, by, shown)
        return by, shown

    def _decide(self, loss: Array, by: Array, shown: Array) -> None:
        store = self._store
        squares = store.squares([*store.norm_shards(store.spans[0][0], store.spans[-1][1])])
        decide_loop(loss, squares, store.factor, self._most, by, shown)


class DeferredSteps:
    """Runs the steps of an executor so that the host reads the result of a step (loss, norm,
    whether it was skipped) from the device during the next step, and not at once.

    update   the ordinary update, for steps whose result is needed at once
    """

    def __init__(
        self, spec: TrainSpec, store: LocalStore, optimizer: Optimizer, update: Update
    ) -> None:
        self._store, self._optimizer = store, optimizer
        clip_norm = spec.arrangement.config.clip_norm
        most = math.inf if clip_norm is None else clip_norm
        self._tail = StepTail(store, most, spec.control.request)
        a = spec.arrangement
        # a loss scale that the last step may change is in no graph
        self._is_in_graph = (
            a.config.micro_batches == 1 and store.scaler is None and spec.single_rank is None
        )
        self._update, self._control, self._is_deferred = update, spec.control, False
        self._copies = CopyStream(store.on)
        self._unread: HostCopy | None = None
        self._outcome, self._end, self._counts = UNREAD, 0, list[int]()
        self.hooks: PassHooks = [(kind, self._behind_reading) for kind in (Kind.B, Kind.I)]
        if self._is_in_graph and self._tail.sums and a.config.compile is not False:
            of_sums = (Kind.NOTE, Kind.SUM, Kind.FINISH)
            self.hooks = [*self.hooks, *((kind, self._unless_launched) for kind in of_sums)]

    @property
    def ends(self) -> Ends:
        """The functions for AGREE and APPLY, the operations that end a step."""
        return {Kind.AGREE: self.agree, Kind.APPLY: self.apply}

    def agree(self, step: int) -> None:
        """Agrees with the other ranks whether the outcome of this step (loss, norm, whether it was
        skipped) is read at once; if so, waits for the sums.

        It is read at once at the end of an epoch, if a rank asks to stop or to save, and if
        something reads the model before the next step.
        """
        self._read()
        is_launched = self._tail.is_launched
        request = self._store.request if is_launched else self._agreed_request()
        reads = request or step + 1 == self._end or self._control.reads(step + 1)
        self._is_deferred = not reads
        if reads and is_launched:
            self._store.write_used()  # all parameters, which no graph writes
        if reads:
            self._update.agree(step)

    def apply(self, step: int) -> Outcome:
        """Updates the parameters; returns the outcome of the step (its loss, and whether it was
        skipped), or UNREAD if the host reads that during the next step."""
        if self._is_deferred:
            self._launch(step)
            self._control.launched()
        self._tail.has_asked = self._tail.is_launched = False
        return UNREAD if self._is_deferred else self._update.apply(step)

    def steps(
        self, executor: Executor, loads: Iterable[StepBatch], start: StepState, batches: int
    ) -> Generator[StepResult, None, None]:
        """Yields the results of an executor's steps, each as soon as the host has read its outcome.

        loads     the batches
        start     the state before the first step
        batches   the number of batches in the epoch
        """
        executor.loss.tail = self._tail if self._is_in_graph else None
        self._tail.has_asked = self._tail.is_launched = False  # of a step that was interrupted
        self._end, last = start.step + batches - start.batch, list[StepResult]()
        for result in executor.steps(loads, start, batches):
            for done in last:
                yield done._replace(**self._outcome._asdict(), next_is_computed=True)
            last = [result] if self._unread is not None else []
            if not last:
                yield result

    def _agreed_request(self) -> float:
        """Sums the ranks' requests; sets `has_grad` where any rank has a gradient."""
        store = self._store
        row = np.array([0.0, store.request, *(p.has_grad for p in store.parameters)])
        store.dp.all_reduce(row, "doubling")
        for p, times in zip(store.parameters, row[USED:].tolist(), strict=True):
            p.has_grad = times > 0
        return float(row[REQUEST])

    def _summed_loss(self) -> Any:
        """Returns the sum of the ranks' losses, where they were computed; all-reduces it unless it
        was summed with the gradients."""
        store, is_apart = self._store, isinstance(self._store.scalars, np.ndarray)
        if not is_apart or store.dp.size == 1:
            return store.loss if is_apart else store.scalars[LOSS]
        loss = store.on.xp.array(store.loss, np.float64)
        wire_of(store.dp, store.on).all_reduce(loss)
        return loss

    def _launch(self, step: int) -> None:
        """Launches a step that skips itself if loss or gradient is not finite."""
        tail = self._tail
        by, shown = (
            (tail.by, tail.shown) if tail.is_launched else tail.computed(self._summed_loss())
        )
        self._store.factor, self._counts = by, [*self._optimizer.steps]
        self._optimizer.step(lr_factor=self._control.lr_factor(step))
        self._unread = HostCopy(self._copies, shown)
        if tail.is_launched:  # the graph of the next step overwrites what is copied
            self._copies.lead()

    def _unless_launched(self, do: Do, op: Op) -> None:
        """Carries out `op`, an operation on sums over ranks, by do(op), unless the graph of this
        step contains it. A rank whose pass has not asked the others for graphs answers them."""
        if not self._tail.has_asked:
            self._tail.agreed(0)
        if not self._tail.is_launched:
            do(op)

    def _behind_reading(self, do: Do, op: Op) -> None:
        """Carries out `op`, an operation that needs the current loss scale, by do(op). The loss
        scale depends on the outcome of the last step, so this is read from the device before."""
        self._read()
        do(op)

    def _read(self) -> None:
        """Reads the last step's outcome, and sets loss scale and count by it."""
        if self._unread is None:
            return
        (loss, squares), self._unread = self._unread.wait(), None
        is_finite = math.isfinite(loss) and math.isfinite(squares)
        self._outcome = Outcome.of((loss, 0.0, not is_finite, squares))
        if not is_finite:  # the device has skipped the update that the optimizer has counted
            self._optimizer.steps[:] = self._counts
        if (scaler := self._store.scaler) is not None:
            scaler.current = scaler.current.after(is_finite)
            self._store.factor = 1.0 / scaler.current.scale


class HostCopy:
    """Copies a device array to the host after all kernels launched so far."""

    def __init__(self, copies: CopyStream, array: Array) -> None:
        self._array = array  # keeps the memory alive until it is copied
        self._host = copies.pinned(array.nbytes).view(array.dtype)
        copies.follow()
        copies.fetch(array, self._host)
        self._event = copies.event()

    def wait(self) -> list[float]:
        """Waits until the copy is complete, and returns the elements of the array."""
        self._event.synchronize()
        elements: list[float] = self._host.tolist()
        return elements


def deferred(
    spec: TrainSpec, store: LocalStore, optimizer: Optimizer, update: Update
) -> DeferredSteps | None:
    """Returns the DeferredSteps of a rank, whose host reads the outcome of a step during the next
    one; None if the host has to read the outcome of each step at once, as on a CPU. `update` is the
    ordinary end of a step, `store` has the parameters."""
    can_defer = _can_defer(spec.arrangement, store, optimizer)
    return DeferredSteps(spec, store, optimizer, update) if can_defer else None


def _can_defer(a: Arrangement, store: LocalStore, optimizer: Optimizer) -> bool:
    """True if the host need not wait for the outcome of a step: this rank has all parameters, and
    the device itself sums gradients over ranks, or there is only one rank."""
    copies = a.store.name in ("local", "replica") and a.ranks == a.mesh.count(*REPLICAS)
    if not copies or not optimizer.takes_mixed:
        return False
    return a.ranks == 1 or is_in_order(wire_of(store.dp, store.on))
