"""Syncs of data parallelism: gradients are summed over dp, bucket by bucket, in backward passes.

Rules:

- Buckets start in the order of their numbers, the last one first, never in that in which they are
  final: ranks differ in that, and collectives of one Comm have to be called in one order.
- Bucket 0 is last, since its scalars say which parameters were used; nobody knows before.
- Gradients are not set to 0 between steps. A parameter without one has an old one in memory, so
  `fill_unused` comes before the sum.

Parameters of layers along tp that compute some positions, samples or rows are copies, of whose
gradients each rank has a term. The sums over dp come first, bucket by bucket; then each rank sums
what it updates of all these parameters over tp, in one all-reduce. So ZeRO sends its shards only.

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
    """The sum of a bucket starts when it is complete, in one order on every rank.

    The loss, the request and which parameters were used are in the scalars of the store, which
    most stores send with the first bucket of the buffer, the last one that is summed. Without
    `overlap` all sums wait for the end of the backward pass, and those over dp for each other. Sums
    over other stages too (one parameter each) wait for nothing: the ranks of two stages start them
    in different orders.

    at_end   what follows the sums over dp
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
        """Starts what is left, unused parameters included, and waits for all sums."""
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
    """The sync of ZeRO 2 and 3: gradients leave in each backward pass.

    The buckets of a stage start in one order on every rank, the last ones first, as soon as the
    pass is done with all their parameters; those with parameters that it does not use, at its end.
    Without `overlap` each sum is complete before the backward pass goes on.
    """

    every_pass = True

    def __init__(self, store: LocalStore, *how: Any) -> None:
        super().__init__(store, *how)
        buckets = store.buckets
        self._of_pass: dict[int, tuple[list[int], list[int]]] = {}  # due, and uses, of each stage
        for stage in {stage for stages in buckets.stages for stage in stages}:
            due = [b for b, stages in enumerate(buckets.stages) if stage in stages]
            uses = [sum(stage in buckets.users[i] for i in members) for members in buckets.members]
            self._of_pass[stage] = due, uses

    def begin(self, step: int) -> None:
        self._store.begin()
        self._store.scalars[USED:] = 0
        self._due = []

    def begin_pass(self, stage: int) -> None:
        while self._due:  # with parameters that the pass before has not used
            self._start_next()
        due, uses = self._of_pass.get(stage, ((), ()))
        self._due, self._left = [*due], [*uses]

    def poll(self) -> None:
        self._store.poll()

    def _start_next(self) -> None:
        """Starts the sum of a bucket; the next backward pass writes other gradients."""
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
    """Sums the shards of buckets that other stages have too, each over the ranks with the same
    shard of it."""
    with waiting("sums"):
        for b, stages in tied.items():
            shard = store.shard_gradient(store.shards[b])
            stages.all_reduce(shard, store.buckets.algorithm)


def sum_terms(store: LocalStore, terms: Sequence[FlatSlice], tp: Comm) -> None:
    """Sums the gradients in some stretches of the store, of which each rank along tp has a term."""
    shards = (shard for stretch in terms for shard in store.own_shards(*stretch))
    pieces = [*map(store.shard_gradient, shards)]  # on all ranks of tp as many numbers
    if not pieces:
        return
    row = store.on.xp.concatenate(pieces)
    all_reduce(row, tp)
    at = 0
    for piece in pieces:
        piece[...] = row[at : at + len(piece)]
        at += len(piece)
