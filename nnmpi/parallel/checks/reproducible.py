"""--reproducible: the same bits for any number of ranks, up to that of shards.

A batch is cut into a fixed number of shards. Each is computed alone, with a gradient of its own,
and the gradients are summed along one tree over shards (`schedules/tree.py`). The sum ends on rank
0 and is broadcast as it is; every rank moves a replica. So no number depends on where it was
computed:

    seed of each shard        1 / samples of the whole batch
    loss, gradients           along the tree; the loss rides in the head of the gradients
    BatchNorm                 by a shard's own samples; running statistics by the moments of all
                              shards, joined along the tree in float64, once a step
    norm for clipping         of the whole sum, on every rank
    evaluation                every rank computes all of it

That holds for one kind of processor and one build of NumPy, with one BLAS thread: other kernels
add in other orders. The command sees to the thread; who uses the Trainer as a library sets it.

It costs smaller matrix products, a pass over all gradients for each shard, sums that do not hide
behind the backward pass, and ceil(log2 shards) + 1 gradients at a time in memory. A step in 8
shards takes, on 1 or 2 ranks of one node, 1.25 times as long with mnist-cnn and batches of 64, and
1.7 and 2 times with mlp:784-1024-1024-10 and batches of 128, which has more parameters to add up
than samples to multiply them with.
"""

from collections.abc import Callable, Generator, Sequence
from itertools import accumulate
from typing import Any

import numpy as np

from nnmpi.autograd.ops.norm import Moments, joined
from nnmpi.backend import CPU, Array
from nnmpi.collectives.step import cut
from nnmpi.comm import Comm
from nnmpi.config import Config
from nnmpi.data import Loader
from nnmpi.mesh import Mesh
from nnmpi.nn.parameter import Parameter
from nnmpi.parallel.checks.slow_ranks import Delay
from nnmpi.parallel.data.batch_size_check import check_shares
from nnmpi.parallel.data.batch_split import part_of
from nnmpi.parallel.data.batch_stats import like, packed, unpacked
from nnmpi.parallel.data.buckets import LOSS, STOP, USED, fill_unused, head_length, used
from nnmpi.parallel.executor import Facts, Stepped, Worker
from nnmpi.parallel.stores.node import Single
from nnmpi.parallel.strategy import Job
from nnmpi.parallel.update import Mover
from nnmpi.schedules import Action, Move, apart, moves


class Stack(Single):
    """A stack of gradient buffers over one replica of the parameters; `flat_grad` is the topmost.

    Buffers are kept, and used again when the stack grows again. It is a `Single` since the tree
    sums outside of it: what is topmost in the end is the sum of all ranks, and the replica moves
    by it as that of an only rank would. From there it has the norm, and nothing to settle or to
    give back.
    """

    def __init__(self, parameters: Sequence[Parameter], dtype: Any, head: int) -> None:
        super().__init__(parameters, dtype, CPU, head)
        self.buffers = [(self.flat_grad, self.slots)]
        self._height, self.most = 0, 1

    def gradient_bytes(self) -> int:
        """All that a step will take, before the first as well."""
        return super().gradient_bytes() * self.most

    def begin(self) -> None:
        self._height = 0

    def push(self) -> None:
        """One more on top; what is in it means nothing yet."""
        if self._height == len(self.buffers):
            fresh = np.zeros_like(self.flat_grad)
            self.buffers.append((fresh, self.views(fresh)))
        self._show(self._height + 1)

    def pop(self) -> Array:
        """Takes the topmost away, and gives it back: it holds until the next `push`."""
        top = self.flat_grad
        self._show(self._height - 1)
        return top

    def _show(self, height: int) -> None:
        self._height = height
        if height:
            self.flat_grad, self.slots = self.buffers[height - 1]


def highest(plan: Sequence[Move]) -> int:
    """How many gradients lie on the stack of a rank at most."""
    grows = (Action.LEAF, Action.RECEIVE)
    return max(1, *accumulate(1 if move.action in grows else -1 for move in plan))


class Apart:
    """`nnmpi.nn.passes.Across` for shards: layers see one alone; what should be tracked is kept."""

    def __init__(self) -> None:
        self._seen: list[tuple[Moments, Callable[[Moments], None]]] = []

    def begin(self) -> None:
        """A new shard."""
        self._seen = []

    def statistics(self, own: Moments, track: Callable[[Moments], None]) -> Moments:
        """The shard's own. Of no samples they normalise nothing, and pass for those of two."""
        self._seen.append((own, track))
        return own if own.n else own._replace(n=2)

    def total(self, sums: Array) -> Array:
        return sums

    def moments(self) -> np.ndarray:
        """Those of all layers in one row: the shard's, or room for others."""
        return np.concatenate([np.zeros(0), *(packed(own) for own, _ in self._seen)])

    def join(self, left: np.ndarray, right: np.ndarray) -> None:
        """Two rows, in place of the left one."""
        for a, b in zip(self._cut(left), self._cut(right), strict=True):
            a[:] = packed(joined([unpacked(a), unpacked(b)]))

    def track(self, row: np.ndarray) -> None:
        """Every layer's running statistics see the moments of the whole batch."""
        for (own, track), part in zip(self._seen, self._cut(row), strict=True):
            track(like(own, unpacked(part)))

    def _cut(self, row: np.ndarray) -> list[np.ndarray]:
        ends = np.cumsum([1 + 2 * own.mean.size for own, _ in self._seen], dtype=int)
        return np.split(row, ends)[:-1]


class Tree:
    """The Exchange that sums over shards; a row of moments goes with each gradient."""

    def __init__(
        self, store: Stack, mover: Mover, comm: Comm, across: Apart, plan: Sequence[Move]
    ) -> None:
        self._store, self._mover, self._comm, self._across = store, mover, comm, across
        self._plan = plan
        self._rows: list[np.ndarray] = []
        self._do: dict[Action, Callable[[int], None]] = {
            Action.LEAF: self._leaf,
            Action.RECEIVE: self._receive,
            Action.ADD: self._add,
            Action.SEND: self._send,
        }

    def begin(self) -> None:
        """A new step: the first shard is next."""
        self._store.begin()
        self._rows.clear()
        self._moves = iter(self._plan)
        self._go_on()

    def reduce(self, loss: Any, stop: bool) -> None:
        """The gradient of a shard is complete; goes on to the next one."""
        store = self._store
        fill_unused(store.parameters)
        head = store.flat_grad[: store.head]
        head[LOSS], head[STOP], head[USED:] = loss, stop, used(store)
        self._rows.append(self._across.moments())
        self._go_on()

    def ready(self, p: Parameter) -> None:
        """A gradient leaves with all others of its shard."""

    def push(self) -> None:
        """Nothing is under way during a backward pass."""

    def update(self, lr: float) -> Facts:
        """From the root of the tree to all ranks, and moves the parameters."""
        if not self._rows:
            self._make_room()
        for array in (self._store.flat_grad, self._rows[-1]):
            self._comm.broadcast(array)
        self._across.track(self._rows[-1])
        return self._mover.move(lr)

    def close(self) -> None:
        """Gives back what was shared."""
        self._store.close()
        self._comm.free()

    def _go_on(self) -> None:
        """All moves up to the next shard of this rank, or to the end."""
        for move in self._moves:
            self._do[move.action](move.other)
            if move.action is Action.LEAF:
                return

    def _leaf(self, _: int) -> None:
        self._store.push()
        self._mover.begin()
        self._across.begin()

    def _receive(self, source: int) -> None:
        self._make_room()
        for array in (self._store.flat_grad, self._rows[-1]):
            self._comm.irecv(array, source).wait()

    def _add(self, _: int) -> None:
        top = self._store.pop()
        self._store.flat_grad += top
        row = self._rows.pop()
        self._across.join(self._rows[-1], row)

    def _send(self, to: int) -> None:
        for array in (self._store.pop(), self._rows.pop()):
            self._comm.isend(array, to).wait()

    def _make_room(self) -> None:
        self._store.push()
        self._rows.append(self._across.moments())


class Sharded(Worker):
    """A rank that computes its shards one after the other, on a Comm of its own."""

    def __init__(self, config: Config, comm: Comm, mesh: Mesh, job: Job) -> None:
        parameters = job.parameters
        self._shards = V = config.shards
        edges = [cut(V, comm.size, r) for r in range(comm.size + 1)]
        owners = np.repeat(np.arange(comm.size), np.diff(edges)).tolist()
        self._store = Stack(parameters, parameters[0].data.dtype, head_length(parameters))
        self.optimizer, self.mesh, across = job.optimizer(parameters), mesh, Apart()
        mover = Mover(self._store, self.optimizer, config.clip_norm)
        own = range(edges[comm.rank], edges[comm.rank + 1])
        self._store.most = highest(moves(owners, comm.rank))
        super().__init__(
            job.task._replace(across=across),
            Tree(self._store, mover, comm, across, moves(owners, comm.rank)),
            lambda rows: [part_of(rows, V, v) for v in own],
            job.wishes,
            Delay.of(config.slow_rank, config.jitter, config.seed, comm.rank, comm.size),
            apart,
        )

    def steps(self, loader: Loader, epoch: int) -> Generator[Stepped, None, None]:
        V = self._shards
        check_shares(
            self._task.model,
            loader,
            self._wishes.steps,
            [lambda rows: [part_of(rows, V, v) for v in range(V)]],
            f"{V} shard{'s' * (V != 1)}",
            "other --shards or another --batch-size",
        )
        yield from super().steps(loader, epoch)

    def share(self, rows: np.ndarray) -> Sequence[np.ndarray]:
        """All: sums over shares would depend on how many there are."""
        return [rows]

    def total(self, sums: np.ndarray) -> None:
        """Every rank has found the same."""

    def describe(self) -> dict[str, Any]:
        return {"reproducible": True, "shards": self._shards}

    def outcome(self) -> dict[str, Any]:
        return {"gradient_buffers": len(self._store.buffers)}


OTHERS = {
    "micro_batches": "shards are micro-batches already",
    "sync": "a step needs all shards",
    "servers": "every rank moves its own replica",
    "allreduce": "gradients are summed along the tree over shards",
    "bucket_mb": "the gradient of a shard leaves as a whole",
    "overlap": "the gradient of a shard leaves when its backward pass has ended",
    "progress": "the gradient of a shard leaves when its backward pass has ended",
    "device": "the bits are promised on the CPU only",
}
"""Options that have no place beside a tree over shards."""


def check(config: Config, ranks: int) -> None:
    """Refuses what would not give the same bits, or has no place beside the tree."""
    V = config.shards
    if V < 1:
        raise ValueError(f"shards {V}: a batch needs at least 1; 8 shards serve up to 8 ranks")
    if ranks > V:
        raise ValueError(
            f"reproducible with {V} shard{'s' * (V != 1)} on {ranks} ranks: each rank needs one; "
            f"use --shards {ranks}, which gives other bits, or at most {V} rank{'s' * (V != 1)}"
        )
    plain = Config()
    for name, why in OTHERS.items():
        value = getattr(config, name)
        if value != getattr(plain, name):
            raise ValueError(f"reproducible with {name} {value}: {why}; leave one of the two out")
