"""Syncs of data parallelism: sum gradients over dp, bucket by bucket, during backward passes.

Rules:

- Sums start in descending order of buckets, never in the order in which buckets become final: that
  differs between ranks, and all ranks of a Comm have to call its collectives in one order.
- Bucket 0 is last, since its scalars say which parameters were used; no rank knows that earlier.
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
from typing import Any

from nnmpi.comm import Comm
from nnmpi.nn.parameter import Parameter
from nnmpi.parallel.arrangement.flat_buffer import USED, FlatSlice
from nnmpi.parallel.recorder import NO_RECORDER, Recorder, waiting
from nnmpi.parallel.step.executor import GradientSync
from nnmpi.parallel.stores.local import LocalStore, fill_unused
from nnmpi.parallel.tensor.ops import all_reduce
from nnmpi.parallel.wire import Transfer, Wire


class BucketedSync(GradientSync):
    """Starts the sum of a bucket when all its gradients are final, in the same order on every rank.

    The loss, the request and which parameters were used are scalars of the store, and most stores
    send them with bucket 0, which is summed last. Without `overlap` all sums start after the
    backward pass, and those over dp wait for each other. A bucket that other stages sum too (one
    parameter) never waits: the ranks of two stages start these sums in different orders, and would
    wait in a circle.

    at_end   called after the sums over dp
    """

    def __init__(
        self,
        store: LocalStore,
        overlap: bool,
        at_end: Sequence[Callable[[], None]] = (),
        recorder: Recorder = NO_RECORDER,
    ) -> None:
        self._store, self._buckets, self._at_end = store, store.buckets, at_end
        self._overlap, self._waiting = overlap, recorder.waits("sums")
        self._members = [
            [store.parameters[i] for i in members] for members in self._buckets.members
        ]
        self._uses = [
            sum(len(self._buckets.users[i]) for i in members) for members in self._buckets.members
        ]
        self._works: list[Transfer] = []

    def begin(self, step: int) -> None:
        self._store.begin()
        self._due, self._left = [*range(len(self._buckets.all))], [*self._uses]
        self._works.clear()

    def reduce(self, loss: Any, request: float) -> None:
        self._store.note_loss(loss, request)

    def ready(self, p: Parameter) -> None:
        self._left[self._buckets.of[p.index]] -= 1
        if self._overlap or self.every_pass:
            while self._due and not self._left[self._due[-1]]:
                self._start_next()

    def poll(self) -> None:
        if self._works:
            self._works[0].poll()

    def finish(self) -> None:
        """Starts the sums that are left, of unused parameters too, and waits for all."""
        dp = self._buckets.all[0].comm
        with self._waiting:
            while self._due:
                b, work = self._due[-1], self._start_next()
                if work is not None and not self._overlap and self._buckets.all[b].comm is dp:
                    work.wait()
            for work in self._works:
                work.wait()
            self._store.show_sums()
        for act in self._at_end:
            act()

    def _start_next(self) -> Transfer | None:
        b = self._due.pop()
        fill_unused(self._members[b])
        if not b:
            self._store.note_used()
        work = self._store.start(b)
        if work is not None:
            self._works.append(work)
        return work


# ---- ZeRO 2 and 3


class ScatteredSync(BucketedSync):
    """The sync of ZeRO 2 and 3, which scatters gradients in each backward pass.

    The buckets of a stage start in descending order on every rank, each as soon as the pass is done
    with all its parameters; buckets with parameters that the pass does not use start at its end.
    Without `overlap` each sum is complete before the backward pass goes on.
    """

    every_pass = True

    def __init__(self, store: LocalStore, *args: Any) -> None:
        super().__init__(store, *args)
        buckets = store.buckets
        self._of_pass: dict[int, tuple[list[int], list[int]]] = {}  # by stage: due, uses
        for stage in {stage for stages in buckets.stages for stage in stages}:
            due = [b for b, stages in enumerate(buckets.stages) if stage in stages]
            uses = [sum(stage in buckets.users[i] for i in members) for members in buckets.members]
            self._of_pass[stage] = due, uses

    def begin(self, step: int) -> None:
        self._store.begin()
        self._store.scalars[USED:] = 0
        self._due = []

    def begin_pass(self, stage: int) -> None:
        while self._due:  # buckets with parameters that the last pass has not used
            self._start_next()
        due, uses = self._of_pass.get(stage, ((), ()))
        self._due, self._left = [*due], [*uses]

    def poll(self) -> None:
        self._store.poll()

    def _start_next(self) -> None:
        """Starts the sum of a bucket; the next backward pass will write new gradients."""
        store, b = self._store, self._due.pop()
        fill_unused(self._members[b])
        for p in self._members[b]:
            if p.has_grad:
                store.scalars[USED + p.index] = 1
            p.has_grad = False
        work = store.start(b)
        if not self._overlap and work is not None:
            work.wait()


# ---- sums over other axes, at the end of a step


def sum_over_stages(store: LocalStore, tied: Mapping[int, Wire]) -> None:
    """Sums the shards of buckets that other stages have too, each over the ranks that have the same
    shard."""
    with waiting("sums"):
        for b, stages in tied.items():
            shard = store.shard_gradient(store.shards[b])
            stages.all_reduce(shard, store.buckets.algorithm)


def sum_terms(store: LocalStore, terms: Sequence[FlatSlice], tp: Comm) -> None:
    """Sums over tp the gradients in `terms`, slices of the flat buffer of which each rank along tp
    has one term."""
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
