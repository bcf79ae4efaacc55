"""--reproducible: the same bits on any number of ranks, up to the number of slices.

A batch is cut into a fixed number of slices. Each is computed by itself, with its own gradient, and
the gradients are summed along one tree over slices (`reduction_tree.py`). The sum ends on rank 0
and is broadcast; every rank updates a copy of the parameters. So no value depends on the rank that
computed it:

    backward pass             of each slice starts from 1 / samples of the whole batch
    loss, gradients           summed along the tree; the loss is a scalar of the gradient buffer
    BatchNorm                 by a slice's own samples; running statistics by the moments of all
                              slices, joined along the tree in float64, once a step
    norm for clipping         of the whole sum, on every rank
    evaluation                every rank computes all of it

This holds for one kind of processor and one build of NumPy, with one BLAS thread, since other
kernels add in other orders. The command sets the thread; users of the Trainer set it themselves.

It costs time: smaller matrix products, a pass over all gradients for each slice, and sums that do
not overlap with the backward pass; and memory for ceil(log2 slices) + 1 gradients at a time. A step
in 8 slices takes, on 1 or 2 ranks of one node, 1.25 times as long with mnist-cnn and batches of 64,
and 1.7 and 2 times with mlp:784-1024-1024-10 and batches of 128, which has more parameters to sum
for each sample.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from nnmpi.addons.checks.reduction_tree import max_stack_depth, moves, owners_of
from nnmpi.addons.checks.slice_list import slice_by_slice
from nnmpi.addons.checks.slices import broadcast, layout_fields, micro_batches, sent
from nnmpi.arrays.backend import CPU, Array
from nnmpi.autograd.ops.norm import Moments, joined
from nnmpi.comm import Comm, comm_self
from nnmpi.data.loader import part_of
from nnmpi.options.config import Config
from nnmpi.parallel.arrangement.arrangement import StoreKind, StrategyKind
from nnmpi.parallel.arrangement.flat_buffer import scalar_count
from nnmpi.parallel.batch_stats import like, packed, unpacked
from nnmpi.parallel.checks import Checks
from nnmpi.parallel.executor_strategy import Evaluation, StrategyParts
from nnmpi.parallel.layout import Layout
from nnmpi.parallel.recorder import waiting
from nnmpi.parallel.replicas.replicas import check_parts
from nnmpi.parallel.step.executor import GradientSync
from nnmpi.parallel.stores.local import LocalStore, StoreSpec, fill_unused
from nnmpi.parallel.strategy import TrainSpec
from nnmpi.schedules.op import Kind, Op


def reproducible(layout: Layout, spec: TrainSpec) -> StrategyParts:
    """Returns the StrategyParts for --reproducible; every rank calls it."""
    dp, V, parameters = layout.axis["dp"], spec.arrangement.config.slices, spec.parameters
    owners = owners_of(V, dp.size)
    slices = [v for v in range(V) if owners[v] == dp.rank]
    dtype, scalars = parameters[0].array.dtype, scalar_count(parameters)
    of_rank = spec.arrangement, layout.all.rank
    made_from = StoreSpec(*of_rank, parameters, dtype, CPU, dp, scalars)
    store = SliceStore(made_from, max_stack_depth(moves(owners, dp.rank)))
    stats = DeferredStats()
    return StrategyParts(
        store=store,
        cut=lambda rows: [part_of(rows, V, v) for v in slices],
        evaluation=Evaluation(lambda rows: [rows], comm_self()),  # bits depend on the parts
        check=lambda loader: check_parts(
            spec.task.model,
            loader,
            spec.control.steps(),
            [lambda rows: [part_of(rows, V, v) for v in range(V)]],
            f"{V} slice{'s' * (V != 1)}",
            "other --slices or another --batch-size",
        ),
        describe=layout_fields(spec.arrangement),
        sync=TreeSync(store, dp, stats),
        batch_stats=stats,
        outcome=lambda: {"gradient_buffers": len(store.buffers)},
    )


class DeferredStats:
    """BatchStats for --reproducible: each slice is normalised by its own statistics, and running
    ones are updated once, at the end of the step, from all slices."""

    def __init__(self) -> None:
        self._seen: list[tuple[Moments, Callable[[Moments], None]]] = []

    def begin(self) -> None:
        """Discards the moments of the last slice of the batch, before the next one is computed."""
        self._seen = []

    def moments(self, local: Moments, track: Callable[[Moments], None]) -> Moments:
        """Returns the moments of a layer's input in this slice, by which it is normalised, and
        keeps them for `track` at the end of the step. An empty slice counts 2 values, so that no
        layer refuses it."""
        self._seen.append((local, track))
        return local if local.n else local._replace(n=2)

    def sum(self, sums: Array) -> Array:
        return sums

    def row(self) -> np.ndarray:
        """Returns the last slice's moments of all BatchNorm layers as one float64 array to send,
        empty without a slice."""
        return np.concatenate([np.zeros(0), *(packed(local) for local, _ in self._seen)])

    def join(self, left: np.ndarray, right: np.ndarray) -> None:
        """Combines packed BatchNorm moments of two sets of samples, in `left`."""
        for a, b in zip(self._cut(left), self._cut(right), strict=True):
            a[:] = packed(joined([unpacked(a), unpacked(b)]))

    def track(self, row: np.ndarray) -> None:
        """Updates running statistics by the whole batch's moments, packed as by `row`."""
        for (local, track), part in zip(self._seen, self._cut(row), strict=True):
            track(like(local, unpacked(part)))

    def _cut(self, row: np.ndarray) -> list[np.ndarray]:
        ends = np.cumsum([1 + 2 * local.mean.size for local, _ in self._seen], dtype=int)
        return np.split(row, ends)[:-1]


class SliceStore(LocalStore):
    """The store of --reproducible, with a stack of gradient buffers for partial sums over slices of
    the batch; `flat_grad` is the top one.

    buffers   [ sum of slices 0-3 ]   [ sum of slices 4-5 ]   [ slice 6 ]  ◄── flat_grad, the top

    At the end of a step the top is the sum of all slices. Buffers are reused in the next step;
    `most` is the largest height of the stack.
    """

    def __init__(self, spec: StoreSpec, most: int) -> None:
        super().__init__(spec)
        self.buffers = [(self.flat_grad, self.grad_memories)]
        self._height, self._most = 0, most

    def gradient_bytes(self) -> int:
        """Returns the bytes of gradient buffers on the stack, also before a step."""
        return super().gradient_bytes() * self._most

    def clear(self) -> None:
        """Empties the stack of gradient buffers."""
        self._height = 0

    def push(self) -> None:
        """Pushes a gradient buffer, with undefined content, onto the stack."""
        if self._height == len(self.buffers):
            fresh = np.zeros_like(self.flat_grad)
            self.buffers.append((fresh, self.views(fresh)))
        self._show(self._height + 1)

    def pop(self) -> Array:
        """Removes the top buffer and returns it: its content is valid until the next `push`."""
        top = self.flat_grad
        self._show(self._height - 1)
        return top

    def _show(self, height: int) -> None:
        self._height = height
        if height:
            self.flat_grad, self.grad_memories = self.buffers[height - 1]


class TreeSync(GradientSync):
    """The GradientSync of --reproducible: sums gradients along a fixed tree of slices of the batch
    (`slice_list.py`). The packed BatchNorm moments of a slice are sent with each gradient."""

    def __init__(self, store: SliceStore, comm: Comm, stats: DeferredStats) -> None:
        self._store, self._comm, self._stats = store, comm, stats
        self._rows: list[np.ndarray] = []
        self.ops = {
            Kind.PUSH: self._push,
            Kind.ADD: self._add,
            Kind.SEND_SUM: self._send,
            Kind.RECV_SUM: self._receive,
            Kind.SUM: self._sum,
            Kind.FINISH: self._finish,
        }

    def begin(self, step: int) -> None:
        self._store.clear()
        self._rows.clear()

    def note(self, loss: Any, request: float) -> None:
        """Adds a slice's loss and the request to its gradient, which is complete."""
        store = self._store
        fill_unused(store.parameters)
        store.set_loss(loss, request)
        store.write_used()
        self._rows.append(self._stats.row())

    def _push(self, op: Op) -> None:
        self._store.push()
        self._store.begin()
        self._stats.begin()

    def _add(self, op: Op) -> None:
        top, row = self._store.pop(), self._rows.pop()
        self._store.flat_grad += top
        self._stats.join(self._rows[-1], row)

    def _send(self, op: Op) -> None:
        for array in (self._store.pop(), self._rows.pop()):
            self._comm.isend(array, op.peer).wait()

    def _receive(self, op: Op) -> None:
        self._make_room()
        for array in (self._store.flat_grad, self._rows[-1]):
            self._comm.irecv(array, op.peer).wait()

    def _sum(self, op: Op) -> None:
        """Makes room for the summed gradient if this rank has sent its part of it."""
        if not self._rows:
            self._make_room()

    def _finish(self, op: Op) -> None:
        """Broadcasts the sum from the tree's root, and updates running statistics."""
        with waiting("sums"):
            for array in (self._store.flat_grad, self._rows[-1]):
                self._comm.broadcast(array)
        self._stats.track(self._rows[-1])

    def _make_room(self) -> None:
        self._store.push()
        self._rows.append(self._stats.row())


def check(config: Config, ranks: int) -> None:
    """Raises ValueError if there are more ranks than slices of a batch."""
    V = config.slices
    if config.reproducible and ranks > V:
        raise ValueError(
            f"reproducible with {V} slice{'s' * (V != 1)} on {ranks} ranks: each rank needs one; "
            f"use --slices {ranks}, which gives other bits, or at most {V} rank{'s' * (V != 1)}"
        )


def check_batch(config: Config, samples: int) -> None:
    """Raises ValueError if a batch, of `samples` in all, has fewer samples than slices."""
    V, largest = config.slices, min(config.batch_size, samples)
    if config.reproducible and largest < V:
        raise ValueError(
            f"reproducible with {V} slices of batches of {largest}: a slice has at least one "
            f"sample; use --slices {largest} or fewer, which gives other bits"
        )


KIND = StrategyKind(
    "reproducible",
    parts=reproducible,
    store=StoreKind("slices", buckets=False),
    lists=slice_by_slice,
    micro_batches=micro_batches,
    one_thread=True,
    exchanges={Kind.SEND_SUM: sent, Kind.SUM: None, Kind.FINISH: broadcast},
    shared_stats=lambda config: False,  # moments of slices are sent with gradients
)


CHECKS = Checks(ranks=check, batch=check_batch)
