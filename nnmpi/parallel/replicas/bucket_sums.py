"""Sums the gradients of data-parallel replicas, by bucket, in the order of the step's list.

Rules:

- Sums start in the order of the list, never in the order in which buckets become final: that
  differs between ranks, and all ranks of a Comm have to call its collectives in one order.
- Bucket 0 is summed last, since its scalars say which parameters were used, which no rank knows
  earlier.
- Gradients are not set to 0 between steps. A parameter without a gradient has an old one in memory,
  so `fill_unused` comes before the sum.

Where the ranks along tp compute different positions, samples or rows of a layer, its parameters are
copies, and each rank has one term of their gradients. These are summed over dp first, bucket by
bucket; then each rank sums the part that it updates over tp, in one all-reduce for all these
parameters. So ZeRO sends its shards only.

    flat_grad   [ ... | norm.weight | norm.bias | c_attn ... | c_proj.bias | ... ]
                        ▼             ▼                        ▼
                      [ norm.weight | norm.bias              | c_proj.bias ]  ─► all-reduce
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from nnmpi.comm import Comm
from nnmpi.parallel.arrangement.flat_buffer import USED, FlatSlice
from nnmpi.parallel.recorder import NO_RECORDER, Recorder, waiting
from nnmpi.parallel.step.executor import GradientSync
from nnmpi.parallel.stores.local import LocalStore, fill_unused
from nnmpi.parallel.tensor.ops import all_reduce
from nnmpi.parallel.wire import Transfer, Wire
from nnmpi.schedules.op import Kind, Op


class BucketSums(GradientSync):
    """Carries out a step's operations on buckets: sums of gradients, and gathers of values (ZeRO).

    at_end   a dict: kind of operation -> the function that carries it out, for sums at the end of a
             step, such as those over tp (TERMS) and over pipeline stages (TIES)
    """

    def __init__(
        self,
        store: LocalStore,
        at_end: Mapping[Kind, Callable[[], None]],
        recorder: Recorder = NO_RECORDER,
    ) -> None:
        self._store, self._waiting, self.units = store, recorder.waits("sums"), store.units
        members = store.buckets.members
        self._members = [[store.parameters[i] for i in inside] for inside in members]
        self._works = dict[Op, Transfer]()
        self.ops = {
            Kind.SUM: self._sum,
            Kind.FINISH: self._finish,
            **store.ops,
            **{kind: partial(_without_op, act) for kind, act in at_end.items()},
        }

    def begin(self, step: int) -> None:
        self._store.begin()
        self._works.clear()

    def note(self, loss: Any, request: float) -> None:
        self._store.set_loss(loss, request)

    def poll(self) -> None:
        for work in self._works.values():  # one poll moves all messages of a Comm
            work.poll()
            break
        self._store.poll()

    def _sum(self, op: Op) -> None:
        fill_unused(self._members[op.at])
        if not op.at:
            self._store.write_used()
        self._start(op)

    def _start(self, op: Op) -> None:
        work = self._store.start(op.at)
        if work is not None:
            self._works[op._replace(kind=Kind.FINISH)] = work

    def _finish(self, op: Op) -> None:
        work = self._works.pop(op, None)
        if work is not None:
            with self._waiting:
                work.wait()
        self._store.finish(op.at)


def _without_op(act: Callable[[], None], op: Op) -> None:
    act()


class ScatteredSums(BucketSums):
    """The BucketSums of ZeRO 2 and 3: a reduce-scatter after each backward pass."""

    def begin(self, step: int) -> None:
        super().begin(step)
        self._store.scalars[USED:] = 0

    def _sum(self, op: Op) -> None:
        """Starts to sum a bucket's gradients over ranks; the next backward pass overwrites them."""
        members = self._members[op.at]
        fill_unused(members)
        for p in members:
            if p.has_grad:
                self._store.scalars[USED + p.index] = 1
            p.has_grad = False
        self._start(op)


# ---- sums over other axes, at the end of a step


def sum_over_stages(store: LocalStore, tied: Mapping[int, Wire]) -> None:
    """Sums, in ZeRO 2 and 3, the gradients of tied parameters over the stages that use them; `tied`
    has for each bucket the communication among the ranks with the same shard."""
    with waiting("sums"):
        for b, stages in tied.items():
            shard = store.shard_gradient(store.shards[b])
            stages.all_reduce(shard, store.buckets.algorithm)


def sum_terms(store: LocalStore, terms: Sequence[FlatSlice], tp: Comm) -> None:
    """Sums over the ranks along tp those gradients of which each has only one term, such as the
    share of its samples: `terms` are their slices of the flat buffer."""
    shards = (shard for bounds in terms for shard in store.own_shards(*bounds))
    pieces = [*map(store.shard_gradient, shards)]  # equally long on all ranks of tp
    if not pieces:
        return
    row = store.on.xp.concatenate(pieces)
    all_reduce(row, tp)
    offset = 0
    for piece in pieces:
        piece[...] = row[offset : offset + len(piece)]
        offset += len(piece)
